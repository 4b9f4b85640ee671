// 1 when the completion's final answer is the right one, to the letter.
#pragma once

#include <optional>
#include <string_view>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// The answer inside a completion: what follows the last `separator` and stands before the first
// `stop` after it, without white space (ASCII) around it. An empty separator starts at the
// beginning, an empty stop ends at the end. Nothing when the separator never comes.
std::optional<std::string_view> final_answer(std::string_view completion,
                                             std::string_view separator, std::string_view stop);

// 1.0 when final_answer() equals the data set's answer (white space around that left out too), else
// 0.0.
Reward exact_match_reward(const RewardOptions& options);

}  // namespace ringside::rl
