// Reward for completions that match a regular expression.
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// 1 when the whole completion matches options.regex, else 0. White space and a stop text at its end
// are removed first. RE2 syntax; '.' also matches line ends. Matching takes linear time for any
// text, so there are no back-references and no look-around. Bytes that are not UTF-8 match nothing.
// Throws: std::invalid_argument on an empty or malformed expression.
Reward regex_reward(const RewardOptions& options);

}  // namespace ringside::rl
