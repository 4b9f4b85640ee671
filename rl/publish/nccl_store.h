// The rendezvous of NCCL weight groups, without NCCL: stores that inference servers of Python find
// their peers in.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rl/publish/nccl_wire.h"

namespace ringside::rl {

// A listening socket on `host` (a numeric IPv4 address; only there, unlike c10d's own, which
// listens everywhere) and the TCPStore that serves it. port 0: any free one. Not thread-safe.
class GroupStore {
 public:
  // Returns at once. Throws std::invalid_argument for another host, std::system_error when it
  // cannot be bound.
  GroupStore(const std::string& host, uint16_t port);
  ~GroupStore();
  GroupStore(const GroupStore&) = delete;
  GroupStore& operator=(const GroupStore&) = delete;

  uint16_t port() const { return port_; }

  // Starts the store and waits until world_size - 1 others have connected, as vLLM's
  // StatelessProcessGroup.create and torch's rendezvous do on their side. Call once. Throws
  // c10::DistStoreError after `timeout`.
  c10::intrusive_ptr<c10d::Store> open(int64_t world_size, std::chrono::milliseconds timeout);

 private:
  std::string host_;
  uint16_t port_ = 0;
  int listener_ = -1;
};

// Hands the id to the ranks of a vLLM group, who wait for it.
void announce_vllm_id(c10d::Store& store, std::span<const uint8_t, kNcclIdBytes> id);

// The store that a process group of init_custom_process_group (SGLang, slime, OpenRLHF) with this
// group_name lives in. device: "cuda" for NCCL
// ("cpu" for Gloo). From torch 2.11's distributed_c10d._new_process_group_helper, which puts two
// prefixes under the function's own.
c10::intrusive_ptr<c10d::Store> custom_group_store(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& group_name,
                                                   const std::string& device);

}  // namespace ringside::rl
