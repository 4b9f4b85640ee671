// Communicators over c10d: Gloo for CPU tensors, NCCL for CUDA tensors. Thin wrappers of c10d's
// backends, which meet through a c10d::Store that every rank of the world shares.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "sp/mesh/communicator.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace ringside::sp {

// Wraps an existing backend (Gloo, NCCL), which the communicator keeps alive.
// Blocks: never.
std::shared_ptr<Communicator> make_c10d_communicator(c10::intrusive_ptr<c10d::Backend> backend);

// Joins a Gloo group. `timeout` also bounds every later collective. host: the address to bind,
// empty = this machine's default.
// Collective over: these ranks. A group of one connects nothing.
// Blocks: until `size` ranks have called with the same store and group_name.
// Throws: a std::exception of c10d after `timeout`, which names no rank; await_ranks() does.
std::shared_ptr<Communicator> make_gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name, int64_t rank,
                                                     int64_t size, const std::string& host,
                                                     std::chrono::milliseconds timeout);

// The rendezvous store of a run: rank 0 listens at `port` of `host`, the others connect. The store
// is not authenticated: use loopback or a private network.
// Blocks: until connected; rank 0 until all ranks are.
// Throws: c10::Error of c10d after `timeout`, or when the port is taken.
c10::intrusive_ptr<c10d::Store> make_tcp_store(const std::string& host, uint16_t port, int64_t rank,
                                               int64_t world_size,
                                               std::chrono::milliseconds timeout);

}  // namespace ringside::sp
