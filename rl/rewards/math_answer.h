// Reward for mathematical answers that are equivalent to the reference answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/reward.h"

namespace ringside::rl {

// The answer inside a completion: the content of the last \boxed{...} ("" if that is never closed);
// else the text from the last `separator` to a stop text; else the last number; else "".
std::string_view math_answer_of(std::string_view completion, std::string_view separator,
                                StopTexts stops);

// Whether two answers are equivalent, similar to verl's and math_verify's graders: "x = 5" equals
// 5; tuples, intervals and vectors are compared element by element, brackets included; {..} and
// bare lists in any order; numbers within `tolerance` (same_number); anything else as text after
// plain_math(), ignoring case. Never throws. An empty answer, or one longer than 16 KiB, equals
// nothing.
bool same_math(std::string_view a, std::string_view b, double tolerance);

// The answer of a solution of the form of GSM8K, whose last line is "#### 72"; nullopt for another
// form.
std::optional<std::string_view> gsm8k_answer(std::string_view answer);

// 1.0 or 0.0. The data set's answer may itself be boxed, follow the separator, or be a solution in
// the form of GSM8K.
// Throws: std::invalid_argument on a negative tolerance.
Reward math_answer_reward(const RewardOptions& options);

// See answer_problem() in reward.h: an answer that is missing, blank or longer than any
// completion's could be.
std::string math_answer_problem(std::string_view answer, const RewardOptions& options);

}  // namespace ringside::rl
