// Settings that a trainer and its workers must agree on, independent of their encoding.
//
// A worker sends its own in HELLO. The trainer sends the expected ones in WELCOME. A setting that
// one side does not state is not compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringside::bridge {

struct Settings {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> vocab_size;     // token ids are below it
  std::optional<int64_t> max_positions;  // of prompt and completion together
  std::optional<int64_t> max_prompt_tokens;
  std::optional<int64_t> max_completion_tokens;          // sampled in one turn
  std::optional<std::vector<int64_t>> stop_ids;          // token ids that end a completion
  std::optional<int64_t> seed;                           // of the data order and of sampling
  std::optional<std::vector<std::string>> reward_names;  // sorted; trainer: empty means any names
  std::optional<std::string> reward_options;  // options of the reward functions; informative
  std::optional<std::string> prompts;         // fingerprint of prompts, answers and their order
  std::optional<std::string> tokenizer;       // fingerprint of tokenizer.json
  std::optional<std::string> weights;         // what a version's tensors are; adapters: which
  // Fingerprint of the held-out prompts. A worker that states it makes samples of them.
  std::optional<std::string> held_out;
  bool operator==(const Settings&) const = default;
};

struct SettingsComparison {
  std::vector<std::string> fatal;     // training on this worker's rollouts would be wrong
  std::vector<std::string> warnings;  // allowed, but probably a mistake
};

// Compares the settings that both sides state. Each sentence names the setting and both values.
// max_positions is not compared, because only the trainer uses it.
// Thread safety: pure.
SettingsComparison compare_settings(const Settings& trainer, const Settings& worker);

}  // namespace ringside::bridge
