// The configuration of a formula that is tested on its own, where nothing reads some of its keys.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rl/config/load.h"

namespace ringside::test {

// words: "key=value". Unlike a run's, a key that the other keys switch off is no mistake.
// Throws: std::invalid_argument with the first other mistake.
inline rl::Config formula_config(const std::vector<std::string>& words) {
  rl::LoadedConfig loaded = rl::load_config({}, words, rl::ConfigUse::kSampleModel);
  if (!loaded.ok()) {
    throw std::invalid_argument(loaded.errors.front());
  }
  return std::move(loaded.config);
}

}  // namespace ringside::test
