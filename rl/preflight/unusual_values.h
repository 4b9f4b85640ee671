// Notes on values that are allowed and seldom meant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/prompt_set.h"

namespace ringside::rl {

// One sentence for each such value: more workers than `cores` have threads for, a warm-up that the
// run does not outlast, a learning rate of 0, held-out data that is trained on.
std::vector<std::string> unusual_values(const Config& config, int64_t cores);

// The same for the prompts of `key`: fewer than a step takes, or all of one text.
std::vector<std::string> unusual_prompts(const std::string& key, const PromptSet& set,
                                         const Config& config);

}  // namespace ringside::rl
