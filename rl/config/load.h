// Reading a configuration: defaults < preset < YAML files from left to right < key.sub=value of the
// command line.
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
  // Where each key's value came from: "default", "preset trl", "recipe.yaml:12" or "command line".
  // Every key is present.
  std::map<std::string, std::string> origins;
  // All mistakes found, one line each: "recipe.yaml:3:5: rollout.group_size: is -1, expected at
  // least 1". The config is usable only when this is empty.
  std::vector<std::string> errors;

  bool ok() const { return errors.empty(); }
};

// Merges the files (mappings merge deeply, everything else is replaced) and the overrides, each
// "key.sub=value", and checks every value and every combination. Never throws for what a user
// wrote, an unreadable file included: all mistakes are collected in `errors`. Reads files, blocks
// on nothing else; thread-safe.
LoadedConfig load_config(const std::vector<std::filesystem::path>& files,
                         const std::vector<std::string>& overrides);

// The same, for callers that can only go on with a good configuration.
// Throws std::invalid_argument whose text is all errors, a line each.
Config load_config_or_throw(const std::vector<std::filesystem::path>& files,
                            const std::vector<std::string>& overrides);

// The whole configuration as YAML that load_config reads back to an equal Config. Paths are
// absolute by then.
std::string dump(const Config& config);

// configs/defaults.yaml, embedded at build time.
std::string_view defaults_yaml();

}  // namespace ringside::rl
