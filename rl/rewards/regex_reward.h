// Whether a completion has a form.
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// 1 when the whole completion (without white space and a stop text at its end) matches
// options.regex, else 0. RE2's syntax,
// '.' matches line ends too: linear time whatever the text, hence no back-references and no
// look-around. Bytes that are not UTF-8 match nothing. Throws std::invalid_argument on an empty or
// malformed expression.
Reward regex_reward(const RewardOptions& options);

}  // namespace ringside::rl
