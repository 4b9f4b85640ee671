// Weight transfer to inference servers by NCCL broadcast, GPU to GPU. Only in builds with a CUDA
// toolkit.
//
// NEVER RUN: written and linked on machines without a GPU. The parts that need no GPU are tested
// against vLLM's and torch's own Python: the rendezvous (nccl_store.h) and the bucketing
// (nccl_wire.h). The code below has only been compiled.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rl/publish/nccl_store.h"

namespace ringside::rl {

// A group of this trainer rank (rank 0) and the workers of one or more servers (ranks 1 ...). A
// call that does not finish within the timeout aborts the communicator. After that the group is
// unusable, and the servers, which are still inside their collective, must be restarted.
// Blocks: every call.
// Throws: std::runtime_error naming the call, after the timeout.
// Thread safety: none.
class WeightGroup {
 public:
  virtual ~WeightGroup() = default;

  // Sends contiguous CUDA tensors of the current device, in the order in which their names were
  // announced to the servers. The caller must make the servers enter their receiving call at the
  // same time, because their HTTP routes answer only afterwards.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
};

// Joins vLLM's nccl weight-transfer engine as rank 0 on the current CUDA device, and runs the
// warm-up all-reduce that each side does. Post /init_weight_transfer_engine with {master_address,
// master_port, rank_offset: 1, world_size} first; it answers when the group is complete.
// broadcast() sends what an /update_weights with packed true and packed_buffer_size_bytes =
// bucket_bytes receives.
// Blocks: up to `timeout`.
// Throws: c10::DistStoreError or std::runtime_error when the peers do not join within `timeout`.
std::unique_ptr<WeightGroup> make_vllm_group(GroupStore& store, int64_t world_size,
                                             std::chrono::milliseconds timeout,
                                             int64_t bucket_bytes = kVllmBucketBytes);

// Joins SGLang's group of /init_weights_update_group with {master_address, master_port,
// rank_offset: 1, world_size, group_name, backend: nccl}. broadcast() sends tensor by tensor, as
// /update_weights_from_distributed receives.
// Blocks and throws as above.
std::unique_ptr<WeightGroup> make_sglang_group(GroupStore& store, const std::string& group_name,
                                               int64_t world_size,
                                               std::chrono::milliseconds timeout);

}  // namespace ringside::rl
