#include "rl/rewards/exact_match.h"

namespace ringside::rl {

std::string exact_match_answer_problem(std::string_view answer, const RewardOptions& /*options*/) {
  return strip(answer).empty() ? "is missing or blank; there is no answer to compare with" : "";
}

Reward exact_match_reward(const RewardOptions& options) {
  return [separator = options.separator, stops = options.stops](const RewardInput& input) {
    const auto found = final_answer(input.completion, separator, stops);
    return found == strip(input.answer) ? 1.0 : 0.0;
  };
}

}  // namespace ringside::rl
