// Sampler of completions from our own decoder, with their rewards. The embedded worker, the
// trainer's evaluation and `ringside generate` use it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/sampling/prompt_scorer.h"

namespace ringside::rl {

class PromptSampler {
 public:
  // Throws: what PromptScorer's constructor throws.
  PromptSampler(const Config& config, const engine::ModelConfig& model);

  const engine::Tokenizer& tokenizer() const { return scorer_.tokenizer(); }

  // One completion per prompt, prompt i with seeds[i], within the lengths of config.rollout.
  // temperature 0 is greedy. record_routes: completions bring the experts that their tokens used.
  // Several threads compute the rewards.
  // Blocks: until all completions are sampled and scored.
  // Throws: what PromptScorer::encode throws.
  std::vector<ScoredCompletion> sample(const engine::Decoder& decoder,
                                       const std::vector<Prompt>& prompts,
                                       const std::vector<uint64_t>& seeds, double temperature,
                                       bool record_routes = false) const;

  const std::vector<int64_t>& stops() const { return scorer_.stops(); }

 private:
  RolloutConfig config_;
  PromptScorer scorer_;
};

}  // namespace ringside::rl
