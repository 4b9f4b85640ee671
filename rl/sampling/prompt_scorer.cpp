#include "rl/sampling/prompt_scorer.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "rl/config/stop_texts.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

// Rewards that wait for a server or a program use no core.
constexpr int64_t kRewardThreads = 8;

engine::Tokenizer load_tokenizer(const Config& config, const engine::ModelConfig& model) {
  const auto path = std::filesystem::path(config.model.path) / "tokenizer.json";
  auto tokenizer = engine::Tokenizer::load(path);
  const std::string wrong = vocabulary_problem(tokenizer, model);
  if (!wrong.empty()) {
    throw std::runtime_error(path.string() + " " + wrong);
  }
  return tokenizer;
}

// The texts of the stop tokens, which end the completion and are not part of the answer.
std::vector<std::string> texts_of(const Config& config, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& stops) {
  std::vector<std::string> texts = stop_texts(config.rollout.stop);
  if (!texts.empty()) {
    return texts;
  }
  for (const int64_t stop : stops) {
    texts.push_back(tokenizer.decode(std::vector<int64_t>{stop}, false));
  }
  return texts;
}

// Threads that wait for rewards.
int64_t reward_threads(const RolloutConfig& config) {
  const auto rewards = parse_rewards(config.reward);
  const bool judged = std::any_of(rewards.begin(), rewards.end(), [](const WeightedReward& one) {
    return one.name == "judge" && !one.is_python();
  });
  return judged ? std::max(kRewardThreads, config.reward_options.judge_concurrency)
                : kRewardThreads;
}

}  // namespace

std::string vocabulary_problem(const engine::Tokenizer& tokenizer,
                               const engine::ModelConfig& model) {
  if (tokenizer.id_bound() <= model.vocab_size) {
    return "";
  }
  return "has token ids up to " + std::to_string(tokenizer.id_bound() - 1) +
         ", but vocab_size in config.json is " + std::to_string(model.vocab_size) +
         ": the model has no embedding for them; resize it (resize_token_embeddings), or " +
         "use the model's own tokenizer";
}

std::vector<int64_t> stop_ids(const Config& config, const engine::ModelConfig& model,
                              const engine::Tokenizer& tokenizer) {
  if (config.rollout.stop.empty()) {
    if (model.eos_token_ids.empty()) {
      throw std::runtime_error(
          "the model names no end-of-sequence token and rollout.stop is empty");
    }
    return model.eos_token_ids;
  }
  std::vector<int64_t> stops;
  for (const std::string& text : stop_texts(config.rollout.stop)) {
    const auto ids = tokenizer.encode(text);
    if (ids.size() != 1) {
      throw std::runtime_error("rollout.stop \"" + text + "\" is " + std::to_string(ids.size()) +
                               " tokens, expected exactly one");
    }
    stops.push_back(ids.front());
  }
  return stops;
}

RewardOptions reward_options(const RolloutConfig& config, std::vector<std::string> stops) {
  const RewardOptionsConfig& from = config.reward_options;
  RewardOptions options;
  options.separator = config.reward_separator;
  options.stops = std::move(stops);
  options.tolerance = from.tolerance;
  options.regex = from.regex;
  options.json_schema = from.json_schema;
  options.repetition_ngram = from.repetition_ngram;
  options.code_command = from.code_command;
  options.code_timeout_s = from.code_timeout_s;
  options.code_memory_mb = from.code_memory_mb;
  options.http_url = from.http_url;
  options.http_timeout_s = from.http_timeout_s;
  options.judge_url = from.judge_url;
  options.judge_model = from.judge_model;
  options.judge_rubric = from.judge_rubric;
  options.judge_api_key_file = from.judge_api_key_file;
  options.judge_concurrency = from.judge_concurrency;
  options.judge_timeout_s = from.judge_timeout_s;
  options.python_command = from.python_command;
  options.python_processes = from.python_processes;
  options.python_timeout_s = from.python_timeout_s;
  return options;
}

PromptScorer::PromptScorer(const Config& config, const engine::ModelConfig& model)
    : config_(config.rollout),
      rules_(prompt_rules(config)),
      tokenizer_(load_tokenizer(config, model)),
      stop_ids_(stop_ids(config, model, tokenizer_)),
      rewards_(config.rollout.reward,
               reward_options(config.rollout, texts_of(config, tokenizer_, stop_ids_))) {}

std::vector<int64_t> PromptScorer::encode(const Prompt& prompt) const {
  return prompt_ids(prompt, rules_, tokenizer_);
}

std::vector<ScoredCompletion> PromptScorer::score(
    const std::vector<Prompt>& prompts, std::vector<std::vector<int64_t>> prompt_ids,
    std::vector<engine::Completion> completions) const {
  std::vector<ScoredCompletion> scored;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ScoredCompletion s{std::move(prompt_ids[i]), std::move(completions[i]), {}, {}};
    s.text = tokenizer_.decode(s.completion.ids, /*skip_special=*/true);
    scored.push_back(std::move(s));
  }
  std::vector<RewardInput> inputs;  // views of texts that no longer move
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const engine::Completion& completion = scored[i].completion;
    inputs.push_back({prompts[i].prompt, scored[i].text, prompts[i].answer,
                      static_cast<int64_t>(completion.ids.size()), config_.max_completion_tokens,
                      completion.finish == engine::StopReason::kLength, prompts[i].columns});
  }
  auto scores = rewards_.score_all(inputs, reward_threads(config_));
  for (std::size_t i = 0; i < scored.size(); ++i) {
    scored[i].scores = std::move(scores[i]);
  }
  return scored;
}

}  // namespace ringside::rl
