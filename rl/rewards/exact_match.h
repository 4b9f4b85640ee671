// Reward for a final answer that equals the reference answer exactly.
#pragma once

#include "rl/rewards/answer_text.h"
#include "rl/rewards/reward.h"

namespace ringside::rl {

// 1.0 when final_answer() equals the data set's answer, without the white space around it, else
// 0.0.
Reward exact_match_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer that is missing or blank.
std::string exact_match_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
