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

}  // namespace ringside::rl
