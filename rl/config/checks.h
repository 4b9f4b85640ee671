// Checks of combinations of values that are each in range.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct Mistake {
  std::string key;   // the key to change first
  std::string text;  // what is wrong, with both values, and what was expected
};

// All contradictions between keys; empty for a valid configuration.
std::vector<Mistake> check_combinations(const Config& config);

// A number as text for error messages: "0.2", "512.0".
std::string text_of(double value);

}  // namespace ringside::rl
