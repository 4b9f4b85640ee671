#include "rl/worker/prompt_sampler.h"

#include <filesystem>
#include <stdexcept>

namespace ringside::rl {
namespace {

engine::Tokenizer load_tokenizer(const Config& config) {
  return engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json");
}

// The text of the stop token: it ends the completion and is no part of the answer.
std::string stop_text(const Config& config, const engine::Tokenizer& tokenizer, const std::vector<int64_t>& stops) {
  return config.rollout.stop.empty() ? tokenizer.decode(std::vector<int64_t>{stops.front()}, false)
                                     : config.rollout.stop;
}

}  // namespace

std::vector<int64_t> stop_ids(const Config& config, const engine::ModelConfig& model,
                              const engine::Tokenizer& tokenizer) {
  if (config.rollout.stop.empty()) {
    if (model.eos_token_ids.empty()) {
      throw std::runtime_error("the model names no end-of-sequence token and rollout.stop is empty");
    }
    return model.eos_token_ids;
  }
  const auto ids = tokenizer.encode(config.rollout.stop);
  if (ids.size() != 1) {
    throw std::runtime_error("rollout.stop \"" + config.rollout.stop + "\" is " + std::to_string(ids.size()) +
                             " tokens, expected exactly one");
  }
  return ids;
}

PromptSampler::PromptSampler(const Config& config, const engine::ModelConfig& model)
    : config_(config), tokenizer_(load_tokenizer(config)), stop_ids_(stop_ids(config, model, tokenizer_)) {
  reward_ = make_reward(config.rollout.reward,
                        {config.rollout.reward_separator, stop_text(config, tokenizer_, stop_ids_)});
}

std::vector<int64_t> PromptSampler::encode(const Prompt& prompt) const {
  auto ids = tokenizer_.encode(prompt.prompt);
  const auto length = static_cast<int64_t>(ids.size());
  if (length < 1 || length > config_.rollout.max_prompt_tokens) {
    throw std::runtime_error("prompt " + prompt.id + " has " + std::to_string(length) +
                             " tokens, expected 1 to rollout.max_prompt_tokens = " +
                             std::to_string(config_.rollout.max_prompt_tokens));
  }
  return ids;
}

std::vector<ScoredCompletion> PromptSampler::sample(const engine::Decoder& decoder,
                                                    const std::vector<Prompt>& prompts,
                                                    const std::vector<uint64_t>& seeds,
                                                    double temperature) const {
  std::vector<std::vector<int64_t>> prompt_ids;
  for (const Prompt& prompt : prompts) {
    prompt_ids.push_back(encode(prompt));
  }
  engine::SamplingParams params;
  params.temperature = temperature;
  params.top_p = config_.rollout.top_p;
  params.top_k = config_.rollout.top_k;
  params.max_new_tokens = config_.rollout.max_completion_tokens;
  params.stop_ids = stop_ids_;
  engine::GenerateOptions options;
  options.seeds = seeds;
  auto completions = engine::generate(decoder, prompt_ids, params, options);
  std::vector<ScoredCompletion> scored;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ScoredCompletion s{std::move(prompt_ids[i]), std::move(completions[i]), {}, 0.0};
    s.text = tokenizer_.decode(s.completion.ids, /*skip_special=*/true);
    s.reward = reward_({prompts[i].prompt, s.text, prompts[i].answer});
    scored.push_back(std::move(s));
  }
  return scored;
}

}  // namespace ringside::rl
