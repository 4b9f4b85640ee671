// Samples completions of prompts and scores them: what a rollout worker and `ringside generate` share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/model/decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/text_data.h"
#include "rl/rewards/reward_set.h"

namespace ringside::rl {

struct ScoredCompletion {
  std::vector<int64_t> prompt_ids;
  engine::Completion completion;
  std::string text;  // of the completion, without special tokens
  RewardScores scores;  // without any value, and a failure that says why, where a reward was not to be had
};

// The token ids that end a completion: of config.rollout.stop, else of the model. Throws std::runtime_error when there is
// none, or when rollout.stop is not one token.
std::vector<int64_t> stop_ids(const Config& config, const engine::ModelConfig& model,
                              const engine::Tokenizer& tokenizer);

// What the rewards of config.rollout look at; `stop` is the text that ends a completion.
RewardOptions reward_options(const RolloutConfig& config, const std::string& stop);

class PromptSampler {
 public:
  // Reads the tokenizer of config.model.path. Throws std::runtime_error or std::invalid_argument naming what is wrong.
  PromptSampler(const Config& config, const engine::ModelConfig& model);

  // One completion per prompt, prompt i with seeds[i]; at most config.rollout's lengths. temperature 0 is greedy.
  // Rewards are computed by several threads at a time. Blocks until all are there. Throws std::runtime_error naming a
  // prompt that is longer than rollout.max_prompt_tokens or empty.
  std::vector<ScoredCompletion> sample(const engine::Decoder& decoder, const std::vector<Prompt>& prompts,
                                       const std::vector<uint64_t>& seeds, double temperature) const;

 private:
  std::vector<int64_t> encode(const Prompt& prompt) const;
  std::vector<RewardScores> score(const std::vector<Prompt>& prompts, const std::vector<ScoredCompletion>& completions) const;

  Config config_;
  engine::Tokenizer tokenizer_;
  std::vector<int64_t> stop_ids_;
  RewardSet rewards_;
};

}  // namespace ringside::rl
