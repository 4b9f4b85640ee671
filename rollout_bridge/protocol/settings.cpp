#include "rollout_bridge/protocol/settings.h"

#include <cstdio>

namespace ringside::bridge {
namespace {

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(const std::string& value) { return "'" + value + "'"; }

template <class T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) {
    text.append(text.empty() ? "" : ", ").append(text_of(value));
  }
  return "[" + text + "]";
}

template <class T>
void compare(const char* name, const std::optional<T>& trainer, const std::optional<T>& worker,
             std::vector<std::string>& differences) {
  if (!trainer || !worker || *trainer == *worker) {
    return;
  }
  differences.push_back(std::string(name) + " is " + text_of(*worker) + ", the trainer's is " +
                        text_of(*trainer));
}

}  // namespace

SettingsComparison compare_settings(const Settings& trainer, const Settings& worker) {
  SettingsComparison out;
  compare("temperature", trainer.temperature, worker.temperature, out.fatal);
  compare("top_p", trainer.top_p, worker.top_p, out.fatal);
  compare("top_k", trainer.top_k, worker.top_k, out.fatal);
  compare("vocab_size", trainer.vocab_size, worker.vocab_size, out.fatal);
  compare("seed", trainer.seed, worker.seed, out.fatal);
  compare("the fingerprint of prompts", trainer.prompts, worker.prompts, out.fatal);
  compare("the fingerprint of tokenizer", trainer.tokenizer, worker.tokenizer, out.fatal);
  compare("the fingerprint of held-out prompts", trainer.held_out, worker.held_out, out.fatal);
  compare("weights", trainer.weights, worker.weights, out.fatal);
  if (trainer.reward_names && !trainer.reward_names->empty()) {
    compare("reward_names", trainer.reward_names, worker.reward_names, out.fatal);
  }
  compare("stop_ids", trainer.stop_ids, worker.stop_ids, out.warnings);
  compare("max_prompt_tokens", trainer.max_prompt_tokens, worker.max_prompt_tokens, out.warnings);
  compare("max_completion_tokens", trainer.max_completion_tokens, worker.max_completion_tokens,
          out.warnings);
  compare("reward_options", trainer.reward_options, worker.reward_options, out.warnings);
  return out;
}

}  // namespace ringside::bridge
