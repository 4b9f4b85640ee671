// What stands before and after sampling, whoever samples: prompts become token ids, completions
// become text and rewards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/models/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/prompt_set.h"
#include "rl/rewards/reward_set.h"

namespace ringside::rl {

struct ScoredCompletion {
  std::vector<int64_t> prompt_ids;
  engine::Completion completion;
  std::string text;  // of the completion, without special tokens
  RewardScores
      scores;  // without any value, and a failure that says why, where a reward was not to be had
};

// The token ids that end a completion: of config.rollout.stop, else of the model. Throws
// std::runtime_error when there is none, or when rollout.stop is not one token.
std::vector<int64_t> stop_ids(const Config& config, const engine::ModelConfig& model,
                              const engine::Tokenizer& tokenizer);

// Why these two do not belong together, "" when they do: token ids that the model has no embedding
// for.
std::string vocabulary_problem(const engine::Tokenizer& tokenizer,
                               const engine::ModelConfig& model);

// What the rewards of config.rollout look at; `stop` is the text that ends a completion.
RewardOptions reward_options(const RolloutConfig& config, const std::string& stop);

class PromptScorer {
 public:
  // Reads the tokenizer of config.model.path. Throws std::runtime_error or std::invalid_argument
  // naming what is wrong, a tokenizer with ids that the model lacks among it.
  PromptScorer(const Config& config, const engine::ModelConfig& model);

  // prompt_ids() of data.on_overlong's policy. Throws like it.
  std::vector<int64_t> encode(const Prompt& prompt) const;

  // One each for prompts, their ids and their completions. Rewards are computed by several threads
  // at a time; blocks until all are there.
  std::vector<ScoredCompletion> score(const std::vector<Prompt>& prompts,
                                      std::vector<std::vector<int64_t>> prompt_ids,
                                      std::vector<engine::Completion> completions) const;

  const std::vector<int64_t>& stops() const { return stop_ids_; }
  const engine::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  RolloutConfig config_;
  PromptLimit limit_;
  engine::Tokenizer tokenizer_;
  std::vector<int64_t> stop_ids_;
  RewardSet rewards_;
};

}  // namespace ringside::rl
