// What a model may write is any bytes at all: every reward gives a finite number for them, whatever
// they are.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>

#include "rl/rewards/reward.h"

namespace ringside::rl {
namespace {

struct NamedReward {
  std::string name;
  RewardOptions options;
  Reward reward;
};

// All but those that leave the process, with options they can work with.
std::vector<NamedReward> rewards() {
  RewardOptions options;
  options.regex = "(a|b)*c|.*\\d";
  options.repetition_ngram = 2;
  std::vector<NamedReward> all;
  for (const char* separator : {"", "####"}) {
    options.separator = separator;
    options.stops = {*separator == '\0' ? "" : "<end>"};
    for (const std::string_view name : reward_names()) {
      if (name != "code_tests" && name != "http" && name != "judge") {
        all.push_back({std::string(name), options, make_reward(name, options)});
      }
    }
  }
  return all;
}

void check_finite(const std::string& completion, const std::string& answer) {
  static const auto all = rewards();
  for (const auto& [name, options, reward] : all) {
    if (!answer_problem(name, answer, options).empty()) {
      continue;  // refused before any completion is looked at
    }
    const double score = reward({completion, completion, answer, 3, 10, true});
    if (!std::isfinite(score) || score < -1.0 || score > 1.0) {
      FAIL(name << " gives " << score << " for a completion of " << completion.size() << " bytes");
    }
  }
}

// Bytes, with pieces among them that rewards look for.
std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> pieces = {"\\boxed{",
                                                  "}",
                                                  "{",
                                                  "####",
                                                  "<end>",
                                                  "\\frac{",
                                                  "1/0",
                                                  "-",
                                                  "+",
                                                  "e",
                                                  "1e999",
                                                  "nan",
                                                  "inf",
                                                  "%",
                                                  "\\%",
                                                  ",",
                                                  ".",
                                                  "[",
                                                  "]",
                                                  "(",
                                                  ")",
                                                  "\\{",
                                                  "\\}",
                                                  "=",
                                                  "x",
                                                  "\\text{",
                                                  "^",
                                                  "_",
                                                  "\\left",
                                                  "\\right",
                                                  "$",
                                                  "```json\n",
                                                  "```",
                                                  "\n",
                                                  "\"",
                                                  ":",
                                                  "null",
                                                  "true",
                                                  "Answer: ",
                                                  "(B)",
                                                  "A.",
                                                  "\\",
                                                  "7",
                                                  "1,234",
                                                  " ",
                                                  "\xff",
                                                  "\xc3",
                                                  "\xe2\x82",
                                                  std::string(1, '\0'),
                                                  "\\times 10^{",
                                                  "°"};
  std::string text;
  const auto length = random() % 40;
  for (std::size_t i = 0; i < length; ++i) {
    if (random() % 4 == 0) {
      text.push_back(static_cast<char>(random() % 256));
    } else {
      text += pieces[random() % pieces.size()];
    }
  }
  return text;
}

TEST_CASE("every reward is finite for random bytes") {
  std::mt19937_64 random(20240501);
  for (int i = 0; i < 20000; ++i) {
    check_finite(random_text(random), random_text(random));
  }
}

TEST_CASE("every reward is finite for texts that are long or deep") {
  for (const std::string& unit :
       {std::string("["), std::string("{\"a\":"), std::string("{"), std::string("\\boxed{"),
        std::string("a "), std::string("a"), std::string("9"), std::string("1 "),
        std::string("\xff"), std::string("(A"), std::string("```json\n"), std::string("\\frac{1"),
        std::string("\n"), std::string("\\"), std::string("$"), std::string("#")}) {
    INFO(unit);
    std::string text;
    while (text.size() < (std::size_t{10} << 20) / 4) {
      text += unit;
    }
    check_finite(text, "1");
    check_finite("\\boxed{" + text.substr(0, 10000) + "}", text.substr(0, 10000));
  }
  check_finite("", "");
  check_finite(std::string(std::size_t{10} << 20, 'x'), "{}");
  check_finite(std::string(100000, '['), "{}");
  check_finite(std::string(100000, '[') + std::string(100000, ']'), std::string(100000, '['));
}

}  // namespace
}  // namespace ringside::rl
