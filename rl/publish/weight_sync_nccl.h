// Weights to inference servers by NCCL broadcast, GPU to GPU. Only in builds that have a CUDA
// toolkit.
//
// NEVER RUN: written and linked on machines without a GPU. Tested are the parts that need none: the
// rendezvous (nccl_store.h) and the cutting into buckets (nccl_wire.h), against vLLM's and torch's
// own Python. What follows below has only been compiled.
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

// One group of this trainer rank (rank 0) and the workers of one or more servers (ranks 1 ...). A
// call that does not finish within the timeout aborts the communicator and throws
// std::runtime_error, naming the call; the group is of no use then, and the servers, who are left
// inside their collective, have to be started anew. Not thread-safe; calls block.
class WeightGroup {
 public:
  virtual ~WeightGroup() = default;

  // Sends CUDA tensors of the current device, contiguous, in the order in which the servers were
  // told their names. The caller must have the servers enter their receiving call at the same time
  // (their routes answer only afterwards).
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
};

// vLLM's nccl weight-transfer engine: after /init_weight_transfer_engine with {master_address,
// master_port, rank_offset: 1, world_size} has been posted - it answers when the group stands -
// joins as rank 0 on the current CUDA device and does the warm-up all-reduce that each side does.
// broadcast() sends what an /update_weights with packed true and packed_buffer_size_bytes =
// bucket_bytes receives. Throws c10::DistStoreError or std::runtime_error when the others do not
// come within `timeout`.
std::unique_ptr<WeightGroup> make_vllm_group(GroupStore& store, int64_t world_size,
                                             std::chrono::milliseconds timeout,
                                             int64_t bucket_bytes = kVllmBucketBytes);

// SGLang's group of /init_weights_update_group with {master_address, master_port, rank_offset: 1,
// world_size, group_name, backend: nccl}. broadcast() sends tensor by tensor, as
// /update_weights_from_distributed receives. Throws as above.
std::unique_ptr<WeightGroup> make_sglang_group(GroupStore& store, const std::string& group_name,
                                               int64_t world_size,
                                               std::chrono::milliseconds timeout);

}  // namespace ringside::rl
