// Encoding of prompts and scoring of completions, shared by all samplers: prompts become token ids;
// completions become text and rewards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/layers/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/prompt_set.h"
#include "rl/rewards/reward_set.h"

namespace ringside::rl {

struct ScoredCompletion {
  std::vector<int64_t> prompt_ids;
  engine::Completion completion;
  std::string text;  // of the completion, without special tokens
  // Without values, and with the reason in `failure`, if a reward was unavailable.
  RewardScores scores;
};

// The token ids that end a completion: those of config.rollout.stop, or else of the model.
// Throws: std::runtime_error when there is none, or when a text of rollout.stop is not one token;
// std::invalid_argument as stop_texts().
std::vector<int64_t> stop_ids(const Config& config, const engine::ModelConfig& model,
                              const engine::Tokenizer& tokenizer);

// Why the tokenizer does not fit the model (it has ids without an embedding); "" when it fits.
std::string vocabulary_problem(const engine::Tokenizer& tokenizer,
                               const engine::ModelConfig& model);

// Reward options from config.rollout. stops: texts that end a completion.
RewardOptions reward_options(const RolloutConfig& config, std::vector<std::string> stops);

class PromptScorer {
 public:
  // Reads the tokenizer of config.model.path.
  // Throws: std::runtime_error or std::invalid_argument naming the problem, including a tokenizer
  // with ids that the model lacks.
  PromptScorer(const Config& config, const engine::ModelConfig& model);

  // The prompt's token ids: prompt_ids() with prompt_rules() of the configuration.
  // Throws: as prompt_ids().
  std::vector<int64_t> encode(const Prompt& prompt) const;

  // One scored completion per prompt, from its ids and its completion. Several threads compute the
  // rewards.
  // Shapes: the three are equally long.
  // Blocks: until all are scored.
  std::vector<ScoredCompletion> score(const std::vector<Prompt>& prompts,
                                      std::vector<std::vector<int64_t>> prompt_ids,
                                      std::vector<engine::Completion> completions) const;

  // Rules of images; none: prompts have no images.
  const std::optional<ImageRules>& image_rules() const { return rules_.images; }
  const std::vector<int64_t>& stops() const { return stop_ids_; }
  const engine::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  RolloutConfig config_;
  PromptRules rules_;
  engine::Tokenizer tokenizer_;
  std::vector<int64_t> stop_ids_;
  RewardSet rewards_;
};

}  // namespace ringside::rl
