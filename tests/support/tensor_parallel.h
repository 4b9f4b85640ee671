// Contexts of tensor-parallel models, without a configuration.
#pragma once

#include <memory>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/params/sharding.h"
#include "sp/mesh/process_groups.h"

namespace ringside::test {

// Axes of the groups that tensor_context() needs, and of the experts'.
inline std::vector<sp::Axes> tensor_axes() {
  const sp::Axes shard = sp::axes::fsdp(sp::CpFsdpMode::kAll);
  return {sp::axes::kTensor,
          sp::axes::kRows,
          shard,
          shard.with(sp::Axis::kTensor),
          sp::axes::without_fsdp(sp::CpFsdpMode::kAll),
          sp::axes::kExpert,
          sp::axes::kExpertShard,
          sp::axes::kSameExperts};
}

// A context whose matrices are divided over the tensor axis. zero_stage 0: every rank keeps all of
// its part; otherwise the part is sharded over all ranks of a replica.
// Experts are divided over the expert axis, if it has more than one rank.
inline engine::ComputeContext tensor_context(const sp::ProcessGroups& groups, at::ScalarType dtype,
                                             int64_t zero_stage = 0) {
  const sp::Axes all = sp::axes::fsdp(sp::CpFsdpMode::kAll);
  const sp::Axes rest = sp::axes::without_fsdp(sp::CpFsdpMode::kAll);
  const auto sharding = [&](sp::Axes shard, sp::Axes replicas, sp::Axes unsharded) {
    return std::make_shared<const engine::Sharding>(
        zero_stage == 0
            ? engine::Sharding{groups.tensors(sp::axes::kNone), groups.tensors(unsharded)}
            : engine::Sharding{groups.tensors(shard), groups.tensors(replicas), zero_stage});
  };
  engine::ComputeContext context(dtype);
  context.sharding = sharding(all, rest, sp::axes::kLoss);
  if (groups.tensors(sp::axes::kTensor)->size() > 1) {
    context.tensor = std::make_shared<const engine::TensorSharding>(
        engine::TensorSharding{groups.tensors(sp::axes::kTensor),
                               sharding(all.with(sp::Axis::kTensor), rest, sp::axes::kRows),
                               groups.tensors(sp::axes::kRows)});
  }
  if (groups.tensors(sp::axes::kExpert)->size() > 1) {
    context.experts = std::make_shared<const engine::ExpertSharding>(engine::ExpertSharding{
        groups.tensors(sp::axes::kExpert),
        sharding(sp::axes::kExpertShard, {sp::Axis::kDpReplicate}, sp::axes::kSameExperts)});
  }
  return context;
}

}  // namespace ringside::test
