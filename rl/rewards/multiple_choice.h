// The letter a completion settles on.
#pragma once

#include <optional>
#include <string_view>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// The choice A to Z that a text names last, or nothing. Read, in this order: a \boxed{B}; what
// follows the last `separator` if that comes; the whole text. There the last of: a text that is one
// letter, "(B)" or "(b)", "B." "B)" "B:" at the start of a line, a line that is one letter, "answer
// is B", "Answer: B", "option B", "choice B". Asterisks of Markdown are skipped. A \boxed{ that is
// never closed names nothing.
std::optional<char> chosen_letter(std::string_view text, std::string_view separator);

// 1.0 when the completion's letter is the answer's, read the same way, else 0.0.
Reward multiple_choice_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer that names no letter.
std::string multiple_choice_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
