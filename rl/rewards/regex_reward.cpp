#include "rl/rewards/regex_reward.h"

#include <re2/re2.h>

#include <memory>

#include "rl/rewards/answer_text.h"

namespace ringside::rl {

Reward regex_reward(const RewardOptions& options) {
  if (options.regex.empty()) {
    throw std::invalid_argument("reward regex needs rollout.reward_options.regex, which is empty");
  }
  RE2::Options re2_options;
  re2_options.set_log_errors(false);
  re2_options.set_dot_nl(true);
  const auto pattern = std::make_shared<const RE2>(options.regex, re2_options);
  if (!pattern->ok()) {
    throw std::invalid_argument("rollout.reward_options.regex '" + options.regex +
                                "': " + pattern->error());
  }
  return [pattern, stops = options.stops](const RewardInput& input) {
    const std::string_view text = without_stop(input.completion, stops);
    return RE2::FullMatch(re2::StringPiece(text.data(), text.size()), *pattern) ? 1.0 : 0.0;
  };
}

}  // namespace ringside::rl
