#include "rl/sampling/prompt_sampler.h"

#include <algorithm>
#include <utility>

namespace ringside::rl {

PromptSampler::PromptSampler(const Config& config, const engine::ModelConfig& model)
    : config_(config.rollout), positions_(engine::num_positions(model)), scorer_(config, model) {}

int64_t PromptSampler::fit_completions(const std::vector<Prompt>& prompts) {
  if (positions_ > 0 && positions_ < config_.max_prompt_tokens + config_.max_completion_tokens) {
    int64_t longest = 0;
    for (const Prompt& prompt : prompts) {
      longest = std::max(longest, static_cast<int64_t>(scorer_.encode(prompt).size()));
    }
    if (longest < positions_) {
      config_.max_completion_tokens = std::min(config_.max_completion_tokens, positions_ - longest);
    }
  }
  return config_.max_completion_tokens;
}

std::vector<ScoredCompletion> PromptSampler::sample(const engine::Decoder& decoder,
                                                    const std::vector<Prompt>& prompts,
                                                    const std::vector<uint64_t>& seeds,
                                                    double temperature, bool record_routes) const {
  std::vector<std::vector<int64_t>> prompt_ids;
  for (const Prompt& prompt : prompts) {
    prompt_ids.push_back(scorer_.encode(prompt));
  }
  engine::SamplingParams params;
  params.temperature = temperature;
  params.top_p = config_.top_p;
  params.top_k = config_.top_k;
  params.max_new_tokens = config_.max_completion_tokens;
  params.stop_ids = scorer_.stops();
  engine::GenerateOptions options;
  options.seeds = seeds;
  options.record_routes = record_routes;
  options.max_rows = kMostRows;
  options.cache_bytes = config_.cache_mb << 20;
  auto completions = engine::generate(decoder, prompt_ids, params, options);
  return scorer_.score(prompts, std::move(prompt_ids), std::move(completions));
}

}  // namespace ringside::rl
