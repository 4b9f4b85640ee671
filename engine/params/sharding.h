// Sharding of a model's parameters over ranks (ZeRO, FSDP), and of its experts.
//
// Source: Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (PyTorch FSDP).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "engine/device/compute_context.h"
#include "engine/params/tensor_cut.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// How the parameters of a model are cut over ranks.
struct Sharding {
  // The ranks that hold one copy of the model together. Each keeps an equal range of every unit's
  // flat buffer.
  std::shared_ptr<sp::Communicator> shard;
  // The ranks that hold the same range.
  std::shared_ptr<sp::Communicator> replicas;
  // 1: master weights and optimizer state are sharded. A gathered copy in the compute dtype is kept
  // until the weights change, and gradients are summed once, after the last backward.
  // 2: also gradients: they are summed after each backward.
  // 3: also the weights that compute: they are gathered for each layer and released after it.
  int64_t stage = 3;
  // Whether the next layer's gather starts while a layer computes. The bits do not depend on it.
  bool prefetch = true;
};

// The elements of a buffer that a rank keeps of it.
struct ShardRange {
  int64_t begin = 0;
  int64_t size = 0;    // without padding; 0 on ranks behind the end
  int64_t stored = 0;  // with padding, the same on all ranks
};

// This rank's range of a buffer of n elements: c = ceil(n / ranks) from rank c on.
inline ShardRange own_range(const Sharding& sharding, int64_t numel) {
  const int64_t ranks = sharding.shard->size();
  const int64_t stored = (numel + ranks - 1) / ranks;
  const int64_t begin = std::min(numel, sharding.shard->rank() * stored);
  return {begin, std::min(numel, begin + stored) - begin, stored};
}

// Expert parallelism: the ranks of a group hold all experts together, and each computes with its
// own. Tokens travel to the experts.
struct ExpertSharding {
  // One rank for each part of the experts: rank r has even_part(experts, ranks, r) of each layer.
  std::shared_ptr<sp::Communicator> ranks;
  // How one part is sharded over the ranks that compute with it.
  std::shared_ptr<const Sharding> sharding;
};

// Tag of all that tensor-parallel ranks send each other in a pass.
inline constexpr const char* kTensorTag = "tensor";

// Tensor parallelism: the ranks of a group compute with their own rows or columns of a layer's
// matrices, and hold disjoint rows of the residual stream.
struct TensorSharding {
  // Of ranks with the same tokens: rank r has part r of each cut parameter.
  std::shared_ptr<sp::Communicator> ranks;
  // Of the parameters that each of these ranks uses whole: its shard and replicas together include
  // `ranks`, so that their gradients are summed over them.
  std::shared_ptr<const Sharding> whole;
  // All ranks whose gradients of a parameter make one sum, `ranks` among them.
  std::shared_ptr<sp::Communicator> everybody;
};

// This rank among the tensor-parallel ones; the only one without tensor parallelism.
inline TensorPlace tensor_place(const ComputeContext& context) {
  return context.tensor == nullptr
             ? TensorPlace{}
             : TensorPlace{context.tensor->ranks->rank(), context.tensor->ranks->size()};
}

}  // namespace ringside::engine
