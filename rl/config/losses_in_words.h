// Lists of losses for sentences and messages.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {

// The names of the losses for which the condition holds, in the order of the table.
template <class Condition>
std::vector<std::string_view> losses_that(const Condition& condition) {
  std::vector<std::string_view> names;
  for (const PolicyLoss* loss : policy_losses()) {
    if (condition(*loss)) {
      names.push_back(loss->name);
    }
  }
  return names;
}

// The losses whose keys are in this block.
inline std::vector<std::string_view> losses_of_block(std::string_view block) {
  return losses_that(
      [&](const PolicyLoss& loss) { return !loss.keys.empty() && loss.block() == block; });
}

// "a, b or c" with " or " as the last separator; "a, b, c" with ", ".
inline std::string in_words(const std::vector<std::string_view>& names, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 == names.size() ? last : ", ").append(names[i]);
  }
  return text;
}

}  // namespace ringside::rl
