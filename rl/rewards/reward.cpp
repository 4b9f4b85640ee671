#include "rl/rewards/reward.h"

#include <algorithm>
#include <map>

#include "rl/rewards/code_tests.h"
#include "rl/rewards/exact_match.h"
#include "rl/rewards/http_reward.h"
#include "rl/rewards/json_schema_reward.h"
#include "rl/rewards/length_penalty.h"
#include "rl/rewards/math_answer.h"
#include "rl/rewards/multiple_choice.h"
#include "rl/rewards/regex_reward.h"
#include "rl/rewards/repetition.h"
#include "rl/text/edit_distance.h"

namespace ringside::rl {
namespace {

using RewardFactory = Reward (*)(const RewardOptions&);

// One line a reward.
const std::map<std::string_view, RewardFactory>& factories() {
  static const std::map<std::string_view, RewardFactory> kFactories = {
      {"code_tests", code_tests_reward},
      {"exact_match", exact_match_reward},
      {"http", http_reward},
      {"json_schema", json_schema_reward},
      {"length", length_reward},
      {"math_answer", math_answer_reward},
      {"multiple_choice", multiple_choice_reward},
      {"regex", regex_reward},
      {"repetition", repetition_reward},
  };
  return kFactories;
}

}  // namespace

Reward make_reward(std::string_view name, const RewardOptions& options) {
  const auto found = factories().find(name);
  if (found == factories().end()) {
    throw std::invalid_argument(unknown_reward(name));
  }
  return found->second(options);
}

std::vector<std::string_view> reward_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, factory] : factories()) {
    names.push_back(name);
  }
  return names;
}

std::string unknown_reward(std::string_view name) {
  const std::string_view shown = name.substr(0, 64);
  const auto names = reward_names();
  const auto nearest = *std::min_element(
      names.begin(), names.end(), [&](auto a, auto b) { return edit_distance(a, shown) < edit_distance(b, shown); });
  std::string text = "reward '" + std::string(shown) + "' is unknown";
  if (edit_distance(nearest, shown) <= std::max<std::size_t>(2, shown.size() / 3)) {
    text.append("; did you mean ").append(nearest).append("?");
  }
  text += " Expected one of: ";
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : ", ").append(names[i]);
  }
  return text;
}

}  // namespace ringside::rl
