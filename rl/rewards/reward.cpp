#include "rl/rewards/reward.h"

#include <algorithm>
#include <map>

#include "rl/rewards/code_tests.h"
#include "rl/rewards/edit_distance.h"
#include "rl/rewards/exact_match.h"
#include "rl/rewards/http_reward.h"
#include "rl/rewards/json_schema_reward.h"
#include "rl/rewards/judge_reward.h"
#include "rl/rewards/length_penalty.h"
#include "rl/rewards/math_answer.h"
#include "rl/rewards/multiple_choice.h"
#include "rl/rewards/regex_reward.h"
#include "rl/rewards/repetition.h"

namespace ringside::rl {
namespace {

struct RewardKind {
  Reward (*make)(const RewardOptions&);
  std::string (*answer_problem)(std::string_view answer, const RewardOptions& options);
};

std::string any_answer(std::string_view, const RewardOptions&) { return ""; }

// For learning from a teacher alone.
Reward no_reward(const RewardOptions& /*options*/) {
  return [](const RewardInput&) { return 0.0; };
}

// One line a reward.
const std::map<std::string_view, RewardKind>& kinds() {
  static const std::map<std::string_view, RewardKind> kKinds = {
      {"code_tests", {code_tests_reward, code_tests_answer_problem}},
      {"exact_match", {exact_match_reward, exact_match_answer_problem}},
      {"http", {[](const RewardOptions& options) { return http_reward(options); }, any_answer}},
      {"json_schema", {json_schema_reward, json_schema_answer_problem}},
      {"judge", {[](const RewardOptions& options) { return judge_reward(options); }, any_answer}},
      {"length", {length_reward, any_answer}},
      {"math_answer", {math_answer_reward, math_answer_problem}},
      {"multiple_choice", {multiple_choice_reward, multiple_choice_answer_problem}},
      {"none", {no_reward, any_answer}},
      {"regex", {regex_reward, any_answer}},
      {"repetition", {repetition_reward, any_answer}},
  };
  return kKinds;
}

const RewardKind& kind_of(std::string_view name) {
  const auto found = kinds().find(name);
  if (found == kinds().end()) {
    throw std::invalid_argument(unknown_reward(name));
  }
  return found->second;
}

}  // namespace

std::string answer_problem(std::string_view name, std::string_view answer,
                           const RewardOptions& options) {
  return kind_of(name).answer_problem(answer, options);
}

Reward make_reward(std::string_view name, const RewardOptions& options) {
  const RewardKind& kind = kind_of(name);
  return [name = std::string(name), reward = kind.make(options), check = kind.answer_problem,
          options](const RewardInput& input) {
    const std::string problem = check(input.answer, options);
    if (!problem.empty()) {
      throw RewardUnavailable("the answer of the data set " + problem + " (reward " + name + ")");
    }
    return reward(input);
  };
}

std::vector<std::string_view> reward_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, kind] : kinds()) {
    names.push_back(name);
  }
  return names;
}

std::string unknown_reward(std::string_view name) {
  const std::string_view shown = name.substr(0, 64);
  const auto names = reward_names();
  const auto nearest = *std::min_element(names.begin(), names.end(), [&](auto a, auto b) {
    return edit_distance(a, shown) < edit_distance(b, shown);
  });
  std::string text = "reward '" + std::string(shown) + "' is unknown";
  if (edit_distance(nearest, shown) <= std::max<std::size_t>(2, shown.size() / 3)) {
    text.append("; did you mean ").append(nearest).append("?");
  }
  text += text.ends_with('?') ? " Expected one of: " : "; expected one of: ";
  for (std::size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : ", ").append(names[i]);
  }
  return text + ", python(FILE.py:FUNCTION)";
}

}  // namespace ringside::rl
