#include "rl/setup/sharding.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rl/setup/sequence_parallel.h"

namespace ringside::rl {
namespace {

sp::CpFsdpMode fsdp_mode(CpFsdpMode mode) {
  switch (mode) {
    case CpFsdpMode::kAll:
      return sp::CpFsdpMode::kAll;
    case CpFsdpMode::kUlyssesOnly:
      return sp::CpFsdpMode::kUlyssesOnly;
    case CpFsdpMode::kRingOnly:
      return sp::CpFsdpMode::kRingOnly;
    case CpFsdpMode::kNone:
      return sp::CpFsdpMode::kNone;
  }
  throw std::invalid_argument("unknown cp_fsdp_mode");
}

}  // namespace

std::vector<sp::Axes> sharding_axes(const ParallelConfig& config) {
  const sp::CpFsdpMode mode = fsdp_mode(config.cp_fsdp_mode);
  const sp::Axes shard = sp::axes::fsdp(mode);
  if (sp::Mesh(mesh_shape(config), /*rank=*/0).size(shard) == 1) {
    return {};
  }
  return {shard, sp::axes::without_fsdp(mode)};
}

std::shared_ptr<const engine::Sharding> make_sharding(const ParallelConfig& config,
                                                      const sp::ProcessGroups& groups) {
  const std::vector<sp::Axes> axes = sharding_axes(config);
  const bool whole = axes.empty();
  return std::make_shared<const engine::Sharding>(
      engine::Sharding{groups.tensors(whole ? sp::axes::kNone : axes[0]),
                       groups.tensors(whole ? sp::axes::kLoss : axes[1]), config.zero_stage});
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
