// Evaluation of a decoder on held-out prompts: several completions of each, with rewards and
// lengths. The trainer's evaluation and `ringside eval` use it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "rl/sampling/eval_statistics.h"
#include "rl/sampling/prompt_sampler.h"

namespace ringside::rl {

struct PromptEvaluation {
  std::vector<PromptResult> results{};  // one per prompt, in order
  int64_t unscored = 0;                 // completions whose reward was unavailable
  std::string failure{};                // why, of one of them
};

// Called with each completion of prompt `index`, in order.
using OnCompletion =
    std::function<void(std::size_t index, int64_t sample, const ScoredCompletion& scored)>;

// Samples config.eval.samples completions of each prompt at config.eval.temperature. The random
// numbers of a completion are a function of (seed, prompt index, sample).
// Blocks: until all are sampled and scored.
// Throws: as PromptSampler::sample; std::invalid_argument without a prompt.
PromptEvaluation evaluate_prompts(const PromptSampler& sampler, const engine::Decoder& decoder,
                                  const std::vector<Prompt>& prompts, const Config& config,
                                  const OnCompletion& on_completion = {});

}  // namespace ringside::rl
