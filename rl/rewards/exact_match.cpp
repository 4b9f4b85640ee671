#include "rl/rewards/exact_match.h"

namespace ringside::rl {
namespace {

std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

std::optional<std::string_view> final_answer(std::string_view completion,
                                             std::string_view separator, std::string_view stop) {
  if (!separator.empty()) {
    const std::size_t at = completion.rfind(separator);
    if (at == std::string_view::npos) {
      return std::nullopt;
    }
    completion.remove_prefix(at + separator.size());
  }
  if (!stop.empty()) {
    completion = completion.substr(0, completion.find(stop));
  }
  return strip(completion);
}

Reward exact_match_reward(const RewardOptions& options) {
  return [options](const RewardInput& input) {
    const auto found = final_answer(input.completion, options.separator, options.stop);
    return found == strip(input.answer) ? 1.0 : 0.0;
  };
}

}  // namespace ringside::rl
