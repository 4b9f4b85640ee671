// What does not work with several adapters in one run (lora.adapters). Torch-free.
#pragma once

#include <vector>

#include "rl/config/checks.h"
#include "rl/config/config.h"

namespace ringside::rl {

// Appends a mistake for each setting that lora.adapters excludes; nothing where it is empty.
void check_named_adapters(const Config& config, std::vector<Mistake>& mistakes);

}  // namespace ringside::rl
