// Loading of a configuration, in rising precedence: defaults, preset, YAML files from left to
// right, key.sub=value of the command line.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct LoadedConfig {
  Config config;
  // Origin of each key's value: "default", "preset trl", "recipe.yaml:12" or "command line". Every
  // key is present.
  std::map<std::string, std::string> origins;
  // All mistakes, one line each: "recipe.yaml:3:5: rollout.group_size: is -1, expected at least 1".
  // The config is usable only if this is empty.
  std::vector<std::string> errors;

  bool ok() const { return errors.empty(); }
};

// What a configuration is for.
enum class ConfigUse {
  kRun,          // a training run and its workers: a key that they do not read is a mistake
  kSampleModel,  // `ringside generate`, `eval` and `logprobs`, which read other keys than a run
};

// Merges the files and the overrides, each "key.sub=value", and checks every value and every
// combination. Mappings merge deeply; all other values are replaced. Never throws for invalid user
// input, including an unreadable file: all mistakes are collected in `errors`.
// Blocks: only on reading files.
// Thread safety: safe to call concurrently.
LoadedConfig load_config(const std::vector<std::filesystem::path>& files,
                         const std::vector<std::string>& overrides,
                         ConfigUse use = ConfigUse::kRun);

// The same, for callers that need a valid configuration.
// Throws: std::invalid_argument with all errors as its text, one line each.
Config load_config_or_throw(const std::vector<std::filesystem::path>& files,
                            const std::vector<std::string>& overrides);

// The whole configuration as YAML. load_config reads it back to an equal Config. Paths are
// absolute.
std::string dump(const Config& config);

// The text of configs/defaults.yaml, printed from the rows of the sections.
std::string_view defaults_yaml();

}  // namespace ringside::rl
