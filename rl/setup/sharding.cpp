#include "rl/setup/sharding.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rl/setup/sequence_parallel.h"

namespace ringside::rl {
ShardAxes shard_axes(const ParallelConfig& config) {
  const sp::CpFsdpMode mode = config.cp_fsdp_mode;
  const sp::Axes shard = sp::axes::fsdp(mode);
  if (sp::Mesh(mesh_shape(config), /*rank=*/0).size(shard) == 1) {
    return {sp::axes::kNone, sp::axes::kLoss};
  }
  return {shard, sp::axes::without_fsdp(mode)};
}

ShardAxes expert_shard_axes(const ParallelConfig& config) {
  return shard_axes(config).shard == sp::axes::kNone
             ? ShardAxes{sp::axes::kNone, sp::axes::kSameExperts}
             : ShardAxes{sp::axes::kExpertShard, {sp::Axis::kDpReplicate}};
}

std::vector<sp::Axes> sharding_axes(const ParallelConfig& config) {
  std::vector<sp::Axes> all;
  const auto add = [&](const ShardAxes& axes) {
    if (axes.shard != sp::axes::kNone) {
      all.push_back(axes.shard);
    }
    all.push_back(axes.replicas);
  };
  if (shard_axes(config).shard != sp::axes::kNone) {
    add(shard_axes(config));
  }
  if (config.expert_parallel_size > 1) {
    all.push_back(sp::axes::kExpert);
    add(expert_shard_axes(config));
  }
  return all;
}

std::shared_ptr<const engine::Sharding> make_sharding(const ParallelConfig& config,
                                                      const sp::ProcessGroups& groups) {
  const ShardAxes axes = shard_axes(config);
  return std::make_shared<const engine::Sharding>(engine::Sharding{
      groups.tensors(axes.shard), groups.tensors(axes.replicas), config.zero_stage});
}

std::shared_ptr<const engine::ExpertSharding> make_expert_sharding(
    const ParallelConfig& config, const sp::ProcessGroups& groups) {
  if (config.expert_parallel_size == 1) {
    return nullptr;
  }
  const ShardAxes axes = expert_shard_axes(config);
  return std::make_shared<const engine::ExpertSharding>(engine::ExpertSharding{
      groups.tensors(sp::axes::kExpert),
      std::make_shared<const engine::Sharding>(engine::Sharding{
          groups.tensors(axes.shard), groups.tensors(axes.replicas), config.zero_stage})});
}

std::string expert_count_problem(const ParallelConfig& config, int64_t experts) {
  const int64_t ranks = config.expert_parallel_size;
  if (ranks == 1 || ranks <= experts) {
    return "";
  }
  return "is " + std::to_string(ranks) +
         (experts == 0 ? ", but the model has no experts; expected 1"
                       : ", but a layer has " + std::to_string(experts) +
                             " experts; expected at most that many");
}

void fix_replicas(ParallelConfig& config, int64_t world) {
  if (config.data_parallel_replicate_size > 0) {
    return;
  }
  const int64_t one = config.replica_size();
  if (world % one != 0) {
    throw std::invalid_argument(std::to_string(world) + " ranks do not divide into copies of " +
                                std::to_string(one) + " ranks (parallel.data_parallel_shard_size " +
                                std::to_string(config.data_parallel_shard_size) + " x " +
                                std::to_string(config.sequence_parallel_size()) +
                                " sequence-parallel ranks): " + std::to_string(world % one) +
                                " would be left over");
  }
  config.data_parallel_replicate_size = std::max<int64_t>(1, world / one);
}

}  // namespace ringside::rl
