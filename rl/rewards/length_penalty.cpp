#include "rl/rewards/length_penalty.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::rl {

double overlong_penalty(int64_t completion_tokens, int64_t max_tokens, int64_t buffer_tokens) {
  if (buffer_tokens <= 0 || buffer_tokens > max_tokens || completion_tokens < 0) {
    throw std::invalid_argument(
        "overlong_penalty: completion_tokens " + std::to_string(completion_tokens) +
        ", max_tokens " + std::to_string(max_tokens) + ", buffer_tokens " +
        std::to_string(buffer_tokens) +
        "; expected completion_tokens >= 0 and 0 < buffer_tokens <= max_tokens");
  }
  const int64_t over = completion_tokens - (max_tokens - buffer_tokens);
  return -std::clamp(static_cast<double>(over) / static_cast<double>(buffer_tokens), 0.0, 1.0);
}

Reward length_reward(const RewardOptions&) {
  return [](const RewardInput& input) {
    if (input.max_completion_tokens <= 0) {
      return 0.0;
    }
    const double share = static_cast<double>(input.completion_tokens) /
                         static_cast<double>(input.max_completion_tokens);
    return -std::clamp(share, 0.0, 1.0);
  };
}

}  // namespace ringside::rl
