// Check of a data set's answers before training: whether a completion that gives the right answer
// scores. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// Why no completion that ends with this answer can score with the reward of that name, with the
// form that is expected; "" when one can. exact_match and math_answer only: they are tried on the
// answer as the completion, after the separator, and math_answer in \boxed{} too unless the answer
// is prose (more than six words, or several lines), which no model boxes as it stands.
// kind: what the answer was in the file if neither text nor a number ("an array"), else "".
// Throws: as make_reward.
std::string unmatched_answer(std::string_view name, std::string_view answer, std::string_view kind,
                             const RewardOptions& options);

}  // namespace ringside::rl
