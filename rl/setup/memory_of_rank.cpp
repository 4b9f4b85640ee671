#include "rl/setup/memory_of_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>

#include "engine/nn/token_scores.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace

RankMemory memory_of_rank(const Config& config, const engine::ModelConfig& model) {
  const engine::ComputeContext context(scalar_type(config.model.dtype));
  const int64_t ring = config.parallel.ringattn_parallel_size;
  const int64_t ulysses = config.parallel.ulysses_parallel_size;
  engine::PassShape shape;
  shape.share_tokens = ceil_div(config.train.tokens_per_micro_batch, ring);
  shape.tokens = shape.entries = ceil_div(shape.share_tokens, ulysses);
  shape.query_heads = ceil_div(model.num_attention_heads, ulysses);
  shape.kv_heads = ceil_div(model.num_key_value_heads, ulysses);
  shape.logit_rows = engine::token_score_rows(context.compute_options(), model.vocab_size,
                                              config.model.logit_chunk_mb << 20);
  shape.recompute_activations = config.model.recompute != Recompute::kNone;
  shape.accumulates = true;
  const AlgorithmConfig& algorithm = config.algorithm;
  RankMemory memory;
  memory.policy = engine::estimate_memory(model, context, shape);
  if (algorithm.kl_coef > 0.0 && algorithm.kl_to == KlTo::kReference) {
    memory.reference = memory.policy.weights;
  }
  if (algorithm.advantage.estimator == AdvantageEstimator::kGae) {
    memory.critic = memory.policy.weights + memory.policy.optimizer + memory.policy.gradients;
  }
  return memory;
}

std::string describe(const RankMemory& memory) {
  const engine::MemoryEstimate& policy = memory.policy;
  std::string text = "memory of a rank: about " + gib(memory.total()) +
                     " GiB at the peak of a full micro-batch: weights " + gib(policy.weights) +
                     ", optimizer " + gib(policy.optimizer) + ", gradients " +
                     gib(policy.gradients) + ", activations " +
                     gib(policy.activations + policy.transient);
  if (memory.reference > 0) {
    text += ", reference " + gib(memory.reference);
  }
  if (memory.critic > 0) {
    text += ", critic " + gib(memory.critic);
  }
  return text;
}

}  // namespace ringside::rl
