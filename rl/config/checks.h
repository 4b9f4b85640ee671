// Values that are each in range and still do not go together.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct Mistake {
  std::string key;   // the key to change first
  std::string text;  // what is wrong, with both values, and what was expected
};

// Every contradiction between keys; empty for a configuration that can be honoured.
std::vector<Mistake> check_combinations(const Config& config);

// The part of it that looks at the algorithm: appends to `mistakes`.
void check_algorithm(const Config& config, std::vector<Mistake>& mistakes);

// A number as errors show it: "0.2", "512.0".
std::string text_of(double value);

}  // namespace ringside::rl
