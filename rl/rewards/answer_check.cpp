#include "rl/rewards/answer_check.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "rl/rewards/math_answer.h"

namespace ringside::rl {
namespace {

constexpr int kMostWords = 6;  // of an answer that a model may box as it stands

// Whether a text reads as sentences and not as an answer.
bool is_prose(std::string_view text) {
  if (text.find('\n') != std::string_view::npos) {
    return true;
  }
  std::istringstream words{std::string(text)};
  int count = 0;
  for (std::string word; words >> word;) {
    const auto letters = std::count_if(word.begin(), word.end(),
                                       [](unsigned char c) { return std::isalpha(c) != 0; });
    const bool is_word = letters >= 2 && word.find('\\') == std::string::npos;
    count += is_word ? 1 : 0;
  }
  return count > kMostWords;
}

std::string expected_form(std::string_view name) {
  return name == "math_answer"
             ? "expected the final answer alone, in \\boxed{}, after rollout.reward_separator, or "
               "as GSM8K has it, after \"#### \" on the last line"
             : "expected the text that a completion must give; math_answer also reads \\boxed{} "
               "and GSM8K's \"#### 72\"";
}

}  // namespace

std::string unmatched_answer(std::string_view name, std::string_view answer, std::string_view kind,
                             const RewardOptions& options) {
  const bool math = name == "math_answer";
  if (!math && name != "exact_match") {
    return "";
  }
  if (!kind.empty()) {
    return "is " + std::string(kind) + ", which " + std::string(name) +
           " cannot compare; expected a text or a number";
  }
  if (!math && gsm8k_answer(answer)) {
    return "is a solution that ends in \"#### \" and the answer, and " + std::string(name) +
           " compares the whole of it; " + expected_form(name);
  }
  const Reward reward = make_reward(name, options);
  std::vector<std::string> completions{options.separator + std::string(answer)};
  if (math && !is_prose(answer)) {
    completions.push_back("\\boxed{" + std::string(answer) + "}");
  }
  const bool scores = std::any_of(completions.begin(), completions.end(), [&](const auto& text) {
    return reward({.prompt = "", .completion = text, .answer = answer}) == 1.0;
  });
  return scores ? ""
                : "scores 0 when it is the completion itself, so no completion can score; " +
                      expected_form(name);
}

}  // namespace ringside::rl
