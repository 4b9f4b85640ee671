// Rendezvous stores of NCCL weight groups, where Python inference servers find their peers. Without
// NCCL itself.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rl/publish/nccl_wire.h"

namespace ringside::rl {

// A listening socket on `host` (a numeric IPv4 address) and the TCPStore that it serves. It listens
// on that address only, unlike c10d's own socket, which listens on all. port 0: any free port.
// Thread safety: none.
class GroupStore {
 public:
  // Does not block.
  // Throws: std::invalid_argument for another form of host; std::system_error when the socket
  // cannot be bound.
  GroupStore(const std::string& host, uint16_t port);
  ~GroupStore();
  GroupStore(const GroupStore&) = delete;
  GroupStore& operator=(const GroupStore&) = delete;

  uint16_t port() const { return port_; }

  // Starts the store and waits until world_size - 1 peers have connected, as vLLM's
  // StatelessProcessGroup.create and torch's rendezvous do on their side. Call once.
  // Blocks: up to `timeout`.
  // Throws: c10::DistStoreError after `timeout`.
  c10::intrusive_ptr<c10d::Store> open(int64_t world_size, std::chrono::milliseconds timeout);

 private:
  std::string host_;
  uint16_t port_ = 0;
  int listener_ = -1;
};

// Publishes the NCCL id to the ranks of a vLLM group, which wait for it.
void announce_vllm_id(c10d::Store& store, std::span<const uint8_t, kNcclIdBytes> id);

// The store of a process group made by init_custom_process_group (SGLang, slime, OpenRLHF) with
// this group_name. device: "cuda" for NCCL, "cpu" for Gloo. The function adds two prefixes.
// Source: torch 2.11, distributed_c10d._new_process_group_helper.
c10::intrusive_ptr<c10d::Store> custom_group_store(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& group_name,
                                                   const std::string& device);

}  // namespace ringside::rl
