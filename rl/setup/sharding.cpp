#include "rl/setup/sharding.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rl/config/task.h"
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

ShardAxes whole_shard_axes(const ParallelConfig& config) {
  const ShardAxes axes = shard_axes(config);
  return axes.shard == sp::axes::kNone
             ? ShardAxes{sp::axes::kNone, sp::axes::kRows}
             : ShardAxes{axes.shard.with(sp::Axis::kTensor), axes.replicas};
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
  if (config.tensor_parallel_size > 1) {
    all.push_back(sp::axes::kTensor);
    all.push_back(sp::axes::kRows);
    add(whole_shard_axes(config));
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

std::shared_ptr<const engine::TensorSharding> make_tensor_sharding(
    const ParallelConfig& config, const sp::ProcessGroups& groups) {
  if (config.tensor_parallel_size == 1) {
    return nullptr;
  }
  const ShardAxes axes = whole_shard_axes(config);
  return std::make_shared<const engine::TensorSharding>(engine::TensorSharding{
      groups.tensors(sp::axes::kTensor),
      std::make_shared<const engine::Sharding>(engine::Sharding{
          groups.tensors(axes.shard), groups.tensors(axes.replicas), config.zero_stage}),
      groups.tensors(sp::axes::kRows)});
}

sp::PipelineShape pipeline_shape(const ParallelConfig& config) {
  return {config.pipeline_parallel_size, config.stages_per_rank,
          config.pipeline_schedule == PipelineChoice::kZeroBubbleV ? sp::StageOrder::kVee
                                                                   : sp::StageOrder::kLoop};
}

sp::PipelineSchedule pipeline_schedule(const ParallelConfig& config) {
  switch (config.pipeline_schedule) {
    case PipelineChoice::kAuto:
      return config.stages_per_rank > 1 ? sp::PipelineSchedule::kInterleaved
                                        : sp::PipelineSchedule::kOneForwardOneBackward;
    case PipelineChoice::kGpipe:
      return sp::PipelineSchedule::kGpipe;
    case PipelineChoice::kOneForwardOneBackward:
      return sp::PipelineSchedule::kOneForwardOneBackward;
    case PipelineChoice::kInterleaved:
      return sp::PipelineSchedule::kInterleaved;
    case PipelineChoice::kZeroBubble:
      return sp::PipelineSchedule::kZeroBubble;
    case PipelineChoice::kZeroBubbleV:
      return sp::PipelineSchedule::kZeroBubbleV;
  }
  throw std::invalid_argument("unknown schedule of a pipeline");
}

int64_t pipeline_warm_up(const Config& config) {
  const bool hides = config.parallel.pipeline_schedule == PipelineChoice::kAuto &&
                     config.model.recompute != Recompute::kNone;
  return hides ? config.parallel.pipeline_parallel_size - 1 : 0;
}

engine::TypicalTokens typical_tokens(const Config& config) {
  engine::TypicalTokens typical;
  const RolloutConfig& rollout = config.rollout;
  const int64_t longest = longest_document(config);
  const int64_t budget = config.train.tokens_per_micro_batch;
  typical.document = longest > 0 ? std::min(longest, budget) : budget;
  if (samples_completions(config) && longest > 0) {
    typical.entries =
        static_cast<double>(rollout.max_completion_tokens) / static_cast<double>(longest);
  }
  return typical;
}

std::shared_ptr<const engine::Pipeline> make_pipeline(const Config& config,
                                                      const sp::ProcessGroups& groups) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline_parallel_size == 1) {
    return nullptr;
  }
  return std::make_shared<const engine::Pipeline>(engine::Pipeline{
      pipeline_shape(parallel), groups.tensors(sp::axes::kPipeline), pipeline_schedule(parallel),
      pipeline_warm_up(config), typical_tokens(config)});
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
  const int64_t one = config.model_size();
  if (world % one != 0) {
    throw std::invalid_argument(
        std::to_string(world) + " ranks do not divide into copies of " + std::to_string(one) +
        " ranks (parallel.data_parallel_shard_size " +
        std::to_string(config.data_parallel_shard_size) + " x " +
        std::to_string(config.sequence_parallel_size()) + " sequence-parallel ranks" +
        (config.tensor_parallel_size > 1
             ? " x parallel.tensor_parallel_size " + std::to_string(config.tensor_parallel_size)
             : "") +
        (config.pipeline_parallel_size > 1
             ? " x parallel.pipeline_parallel_size " + std::to_string(config.pipeline_parallel_size)
             : "") +
        "): " + std::to_string(world % one) + " would be left over");
  }
  config.data_parallel_replicate_size = std::max<int64_t>(1, world / one);
}

}  // namespace ringside::rl
