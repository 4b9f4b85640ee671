// Rendezvous of ranks through a c10d store, before they connect their groups.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "sp/mesh/rank_transport.h"

namespace c10d {
class Store;
}

namespace ringside::sp {

// Where the ranks of a run meet.
struct GroupRendezvous {
  c10::intrusive_ptr<c10d::Store> store;  // shared by every rank of the world
  std::string host;                       // address that Gloo binds; empty: this machine's default
  std::chrono::milliseconds timeout{0};   // to join, and of every later collective
  RankTransport transport = RankTransport::kAuto;  // of CPU tensors
  // Ranks of equal machines can share memory; empty: this process's machine_place().
  std::string machine{};
  // Takes a sentence about the transport, on rank 0 of the world; empty: nobody reads it.
  std::function<void(const std::string&)> report{};
};

// Announces this rank and waits for ranks 0 to size - 1 to do the same under `name`. A name serves
// once in the lifetime of a store.
// Collective over: these ranks.
// Blocks: until all are there.
// Throws: std::runtime_error after the timeout; it names the ranks that are missing.
void await_ranks(const GroupRendezvous& rendezvous, const std::string& name, int64_t rank,
                 int64_t size);

}  // namespace ringside::sp
