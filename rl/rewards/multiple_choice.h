// Reward for multiple-choice answers: the letter that a completion chooses.
#pragma once

#include <optional>
#include <string_view>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// The last choice A to Z that the last 64 KiB of a text name, or nullopt. Searched in this order: a
// \boxed{B}; the text after the last `separator` if that occurs; the whole text. Recognised forms:
// a text that is one letter, "(B)" or "(b)", "B." "B)" "B:" at the start of a line, a line that is
// one letter, "answer is B", "Answer: B", "option B", "choice B". Asterisks of Markdown are
// skipped. A \boxed{ that is never closed names no choice.
std::optional<char> chosen_letter(std::string_view text, std::string_view separator);

// 1.0 when the completion's letter equals that of the answer, which is read the same way, else 0.0.
Reward multiple_choice_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer that names no letter.
std::string multiple_choice_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
