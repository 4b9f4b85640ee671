#include "rl/sequence_parallel.h"

#include <algorithm>
#include <stdexcept>

#include "engine/weights/hf_directory.h"
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
  query.num_ranks = config.parallel.context_parallel_size;
  query.options = sequence_options(config.sp).plan;
  query.placement = config.sp.placement;
  query.element_bytes = config.model.dtype == DType::kFloat64 ? 8 : config.model.dtype == DType::kFloat32 ? 4 : 2;
  query.speed = sp::kCpuLoopback;
  return query;
}

}  // namespace

sp::SequenceOptions sequence_options(const SpConfig& config) {
  sp::SequenceOptions options;
  options.plan.ring_impl = config.ring_impl;
  options.plan.heads_k_stride = config.heads_k_stride;
  options.placement = config.placement;
  options.shared_prefix = config.shared_prefix;
  options.async_ulysses = config.async_ulysses;
  return options;
}

std::vector<std::string> factor_context_parallel(Config& config) {
  auto& parallel = config.parallel;
  if (parallel.context_parallel_size == 0) {
    return {};
  }
  auto costs = sp::rank_methods(typical_micro_batch(config));
  const int64_t size = parallel.context_parallel_size;
  std::erase_if(costs, [&](const sp::MethodCost& cost) {
    return (config.sp.method == SpMethod::kUlysses && cost.ulysses != size) ||
           (config.sp.method == SpMethod::kRing && cost.ring != size);
  });
  if (costs.empty()) {
    throw std::invalid_argument("sp.method ulysses: parallel.context_parallel_size " + std::to_string(size) +
                                " exceeds the model's query heads; expected sp.method auto or ring");
  }
  parallel.ulysses_parallel_size = costs.front().ulysses;
  parallel.ringattn_parallel_size = costs.front().ring;
  parallel.context_parallel_size = 0;
  std::vector<std::string> lines;
  for (const sp::MethodCost& cost : costs) {
    lines.push_back((lines.empty() ? "context parallel: chosen " : "context parallel: not ") + sp::describe(cost));
  }
  return lines;
}

}  // namespace ringside::rl
