#include "rl/setup/shared_settings.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/models/adapter_targets.h"
#include "rl/config/adapter_names.h"
#include "rl/config/checks.h"
#include "rl/config/enums.h"
#include "rl/data/group_prompts.h"
#include "rl/rewards/weighted_rewards.h"
#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace {

// Hash of a list of texts. The length before each makes the bytes of any two lists differ.
class ListHash {
 public:
  void add(const std::string& text) {
    const std::string length = std::to_string(text.size()) + ":";
    hash_.update(std::as_bytes(std::span(length)));
    hash_.update(std::as_bytes(std::span(text)));
  }
  void add(const std::vector<Prompt>& prompts) {
    for (const Prompt& prompt : prompts) {
      add(prompt.prompt);
      add(prompt.answer);
      if (!prompt.adapter.empty()) {
        add(prompt.adapter);
      }
      for (const PromptImage& image : prompt.images) {
        add(image.hash);
      }
    }
  }
  std::string hex() { return hash_.hex(); }

 private:
  bridge::Hash128 hash_;
};

std::string fingerprint_of(const PromptSet& set, const DataConfig& data) {
  ListHash hash;
  hash.add(data.shuffle ? "shuffled" : "in order");
  if (has_curriculum(data)) {
    hash.add("named by the group");
  }
  hash.add(set.prompts);
  if (set.images) {
    hash.add(set.images->fingerprint());
  }
  for (const OrderPart& part : set.parts) {
    if (part.weight > 0) {
      hash.add(std::to_string(part.size) + " items of weight " + text_of(part.weight));
    }
  }
  return hash.hex();
}

std::string fingerprint_of(const HeldOutPrompts& held_out) {
  ListHash hash;
  for (const HeldOutSet& set : held_out.sets()) {
    hash.add(set.set.name);
    hash.add(std::to_string(set.prompts.size()));
    hash.add(set.prompts);
  }
  return hash.hex();
}

std::optional<std::string> tokenizer_fingerprint(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      !parsed.is_discarded()) {
    text = parsed.dump();
  }
  return bridge::hash128(std::as_bytes(std::span(text)));
}

std::string options_text(const RolloutConfig& rollout) {
  const RewardOptionsConfig& options = rollout.reward_options;
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "tolerance %.9g, repetition_ngram %lld", options.tolerance,
                static_cast<long long>(options.repetition_ngram));
  return rollout.reward + "; separator \"" + rollout.reward_separator + "\", regex \"" +
         options.regex + "\", " + numbers;
}

std::string published_weights(const LoraConfig& lora) {
  if (lora.publish == LoraPublish::kMerged) {
    return "whole model";
  }
  std::string text = "adapters of rank " + std::to_string(lora.rank) + ", alpha " +
                     text_of(lora.alpha) + ", projections";
  for (const std::string& name : engine::parse_adapter_targets(lora.target_modules)) {
    text += " " + name;
  }
  text += ", base " + std::string(to_string(lora.base));
  for (const std::string& name : adapter_names(lora)) {
    text += ", for " + name;
  }
  return text;
}

}  // namespace

bridge::Settings shared_settings(const Config& config, const engine::ModelConfig& model,
                                 const PromptSet& prompts, const HeldOutPrompts& held_out,
                                 std::optional<std::vector<int64_t>> stop_ids) {
  const RolloutConfig& rollout = config.rollout;
  bridge::Settings settings;
  settings.temperature = rollout.temperature;
  settings.top_p = rollout.top_p;
  settings.top_k = rollout.top_k;
  settings.vocab_size = model.vocab_size;
  settings.max_positions = engine::num_positions(model);
  settings.max_prompt_tokens = rollout.max_prompt_tokens;
  settings.max_completion_tokens = rollout.max_completion_tokens;
  settings.stop_ids = std::move(stop_ids);
  settings.seed = config.seed;
  settings.reward_names.emplace();
  for (const WeightedReward& part : parse_rewards(rollout.reward)) {
    settings.reward_names->push_back(part.name);
  }
  std::sort(settings.reward_names->begin(), settings.reward_names->end());
  settings.reward_options = options_text(rollout);
  if (!prompts.prompts.empty()) {
    settings.prompts = fingerprint_of(prompts, config.data);
  }
  if (held_out.size() > 0) {
    settings.held_out = fingerprint_of(held_out);
  }
  settings.weights = published_weights(config.lora);
  settings.tokenizer =
      tokenizer_fingerprint(std::filesystem::path(config.model.path) / "tokenizer.json");
  return settings;
}

}  // namespace ringside::rl
