#include "rl/setup/sequence_parallel.h"

#include <algorithm>
#include <stdexcept>

#include "engine/io/hf_directory.h"
#include "sp/plan/method_choice.h"

namespace ringside::rl {
namespace {

sp::MethodQuery typical_micro_batch(const Config& config) {
  const engine::ModelConfig model = engine::load_model_config(config.model.path);
  sp::MethodQuery query;
  query.heads = {model.num_attention_heads, model.num_key_value_heads, model.head_dim};
  const int64_t budget = config.train.tokens_per_micro_batch;
  const int64_t longest =
      std::min(budget, config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens);
  query.document_lengths.assign(std::max<int64_t>(1, budget / longest), longest);
  query.num_ranks = config.parallel.sequence_parallel_size();
  query.options = sequence_options(config.sp).plan;
  query.placement = config.sp.placement;
  query.element_bytes = config.model.dtype == DType::kFloat64   ? 8
                        : config.model.dtype == DType::kFloat32 ? 4
                                                                : 2;
  query.speed = sp::kCpuLoopback;
  return query;
}

}  // namespace

sp::MeshShape mesh_shape(const ParallelConfig& config) {
  return {.dp_replicate = std::max<int64_t>(1, config.data_parallel_replicate_size),
          .ring = config.ringattn_parallel_size,
          .ulysses = config.ulysses_parallel_size,
          .dp_shard = config.data_parallel_shard_size};
}

sp::SequenceOptions sequence_options(const SpConfig& config) {
  sp::SequenceOptions options;
  options.plan.ring_impl = config.ring_impl;
  options.plan.ring_backward = config.ring_backward == RingBackward::kAllGather
                                   ? sp::RingImpl::kAllGather
                                   : sp::RingImpl::kP2p;
  options.plan.heads_k_stride = config.heads_k_stride;
  options.placement = config.placement;
  options.shared_prefix = config.shared_prefix;
  options.async_ulysses = config.async_ulysses;
  return options;
}

void factor_context_parallel(Config& config) {
  auto& parallel = config.parallel;
  const int64_t size = parallel.context_parallel_size;
  if (size == 0) {
    return;
  }
  for (const sp::MethodCost& cost : sp::rank_methods(typical_micro_batch(config))) {
    const SpMethod method = config.sp.method;
    if (method == SpMethod::kAuto || (method == SpMethod::kUlysses && cost.ulysses == size) ||
        (method == SpMethod::kRing && cost.ring == size)) {
      parallel.ulysses_parallel_size = cost.ulysses;
      parallel.ringattn_parallel_size = cost.ring;
      parallel.context_parallel_size = 0;
      return;
    }
  }
  throw std::invalid_argument("sp.method ulysses: parallel.context_parallel_size " +
                              std::to_string(size) +
                              " exceeds the model's query heads; expected sp.method auto or ring");
}

std::vector<std::string> describe_sequence_parallel(const Config& config) {
  std::vector<std::string> lines;
  if (config.parallel.sequence_parallel_size() == 1 || config.model.path.empty()) {
    return lines;
  }
  Config factored = config;
  factor_context_parallel(factored);
  for (const sp::MethodCost& cost : sp::rank_methods(typical_micro_batch(config))) {
    const bool used = cost.ulysses == factored.parallel.ulysses_parallel_size;
    lines.push_back(
        std::string(used ? "context parallel, used:     " : "context parallel, not used: ") +
        sp::describe(cost));
  }
  return lines;
}

}  // namespace ringside::rl
