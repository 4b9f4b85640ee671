// A reward that reads the wrong part of a completion trains the wrong thing without a word: which
// separator counts, where the answer ends, and that no model output, however broken, earns a point
// or an exception.
#include <catch2/catch.hpp>
#include <string>

#include "rl/rewards/exact_match.h"
#include "rl/rewards/length_penalty.h"
#include "rl/rewards/multiple_choice.h"
#include "rl/rewards/reward_set.h"

namespace ringside::rl {
namespace {

double exact(std::string_view completion, std::string_view answer,
             const std::string& separator = "", const std::vector<std::string>& stops = {}) {
  RewardOptions options;
  options.separator = separator;
  options.stops = stops;
  return make_reward("exact_match", options)({"prompt", completion, answer});
}

TEST_CASE("exact_match compares the whole completion without a separator") {
  CHECK(exact("044469", "044469") == 1.0);
  CHECK(exact(" 044469\n", "044469") == 1.0);
  CHECK(exact("04446", "044469") == 0.0);
  CHECK(exact("0444699", "044469") == 0.0);
  CHECK(exact("x044469", "044469") == 0.0);
  CHECK(exact("", "044469") == 0.0);
}

TEST_CASE("exact_match reads what follows the last separator") {
  CHECK(exact("6944=0449=044469", "044469", "=") == 1.0);
  CHECK(exact("044469=1", "044469", "=") == 0.0);
  CHECK(exact("044469", "044469", "=") == 0.0);  // the separator is part of the format
  CHECK(exact("044469=", "044469", "=") == 0.0);
  CHECK(exact("steps #### 42", "42", "####") == 1.0);
}

TEST_CASE("exact_match ends at the first stop text after the separator") {
  CHECK(exact("044469;", "044469", "", {";"}) == 1.0);
  CHECK(exact("044469;junk", "044469", "", {";"}) == 1.0);
  CHECK(exact("a;b=044469;", "044469", "=", {";"}) == 1.0);
  CHECK(exact("04;4469", "044469", "", {";"}) == 0.0);
  CHECK(exact("044469;", "044469") == 0.0);
}

TEST_CASE("of several stop texts the first one in the completion ends the answer") {
  CHECK(exact("044469\n", "044469", "", {";", "</s>"}) == 1.0);
  CHECK(exact("044469</s>;", "044469", "", {";", "</s>"}) == 1.0);
  CHECK(exact("044469;x</s>", "044469", "", {"</s>", ";"}) == 1.0);
  CHECK(exact("x</s>044469;", "044469", "", {";", "</s>"}) == 0.0);
  const std::vector<std::string> stops{"d>", "<end>"};
  CHECK(without_stop(" a <end>", stops) == "a");
  CHECK(without_stop("a d>", stops) == "a");
  CHECK(without_stop("a <end> b", stops) == "a <end> b");
}

TEST_CASE("a blank answer is refused, not matched by a blank completion") {
  CHECK_THROWS_WITH(exact("", " "),
                    Catch::Contains("is missing or blank") && Catch::Contains("exact_match"));
  const RewardScores scores = RewardSet("length, exact_match", {}).score({"", "x", ""});
  CHECK_THAT(scores.failure, Catch::Contains("is missing or blank"));
  CHECK(scores.raw.empty());
  CHECK(answer_problem("length", "", {}) == "");
}

TEST_CASE("exact_match survives whatever a model writes") {
  const std::string bytes("\0\xff\xfe=\x80;", 6);
  CHECK(exact(bytes, "1", "=", {";"}) == 0.0);
  CHECK(exact("====", "1", "==") == 0.0);
  CHECK(exact(std::string(100000, '='), "1", "=") == 0.0);
}

TEST_CASE("final_answer tells a missing separator from an empty answer") {
  CHECK_FALSE(final_answer("abc", "=", {}).has_value());
  REQUIRE(final_answer("abc=", "=", {}).has_value());
  CHECK(final_answer("abc=", "=", {})->empty());
}

TEST_CASE("the last box, nested, unclosed or without braces") {
  CHECK(last_box("so \\boxed{1} or \\boxed{ \\frac{1}{2} }.").content == "\\frac{1}{2}");
  CHECK(last_box("\\boxed{\\{1,2\\}} x").content == "\\{1,2\\}");
  CHECK(last_box("\\boxed 7 is it").content == "7");
  CHECK(last_box("\\fbox{8}").content == "8");
  CHECK(last_box("\\boxed{1} \\boxed{2").state == BoxState::kUnclosed);
  CHECK(last_box("\\boxed").state == BoxState::kUnclosed);
  CHECK(last_box("boxed{1}").state == BoxState::kNone);
}

TEST_CASE("the last fenced block of a language") {
  CHECK(last_block("```python\na\n```\ntext\n```python\nb\nc\n```\n", "python") == "b\nc\n");
  CHECK(last_block("```json\n{}\n```\n```python\nb\n```", "json") == "{}\n");
  CHECK(last_block("```python\nnever closed", "python") == "never closed");
  CHECK_FALSE(last_block("```rust\nx\n```", "python").has_value());
  CHECK(last_block("```\nx\n```", "python|") == "x\n");
  CHECK_FALSE(last_block("no fence", "python|").has_value());
}

TEST_CASE("an unknown reward is an error that lists the known ones and the nearest") {
  CHECK_THROWS_WITH(make_reward("exact_mach", {}),
                    Catch::Contains("'exact_mach'") &&
                        Catch::Contains("did you mean exact_match?") &&
                        Catch::Contains("math_answer"));
  CHECK_THROWS_WITH(make_reward("zzzzzzzz", {}),
                    !Catch::Contains("did you mean") &&
                        Catch::Contains("is unknown; expected one of: code_tests"));
  CHECK(reward_names() == std::vector<std::string_view>{
                              "code_tests", "exact_match", "http", "json_schema", "judge", "length",
                              "math_answer", "multiple_choice", "none", "regex", "repetition"});
}

TEST_CASE("overlong_penalty falls linearly over the buffer") {
  CHECK(overlong_penalty(0, 100, 20) == 0.0);
  CHECK(overlong_penalty(80, 100, 20) == 0.0);
  CHECK(overlong_penalty(85, 100, 20) == Approx(-0.25));
  CHECK(overlong_penalty(100, 100, 20) == -1.0);
  CHECK(overlong_penalty(5000, 100, 20) == -1.0);
  CHECK_THROWS_AS(overlong_penalty(1, 100, 0), std::invalid_argument);
  CHECK_THROWS_AS(overlong_penalty(1, 10, 11), std::invalid_argument);
}

TEST_CASE("length is the share of the tokens that were used, with a minus") {
  const Reward length = make_reward("length", {});
  CHECK(length({"", "x", "", 25, 100}) == -0.25);
  CHECK(length({"", "x", "", 100, 100, true}) == -1.0);
  CHECK(length({"", "x", "", 0, 100}) == 0.0);
  CHECK(length({"", "x", "", 500, 100}) == -1.0);
  CHECK(length({"", "x", "", 5, 0}) == 0.0);
}

double repetition(std::string_view text, int64_t n) {
  RewardOptions options;
  options.repetition_ngram = n;
  return make_reward("repetition", options)({"", text, ""});
}

TEST_CASE("repetition is the share of n-grams that came before") {
  CHECK(repetition("a b c d", 2) == 0.0);
  CHECK(repetition("a b a b a b", 2) == Approx(-3.0 / 5));  // ab ba ab ba ab
  CHECK(repetition("a a a a a", 1) == Approx(-4.0 / 5));
  CHECK(repetition("a b b a", 2) == 0.0);  // order counts
  CHECK(repetition("a b", 3) == 0.0);
  CHECK(repetition("", 1) == 0.0);
  CHECK(repetition("x  x\n\tx", 1) == Approx(-2.0 / 3));
  CHECK_THROWS_AS(repetition("a", 0), std::invalid_argument);
}

double matches(std::string_view text, const std::string& pattern) {
  RewardOptions options;
  options.regex = pattern;
  options.stops = {"<end>"};
  return make_reward("regex", options)({"", text, ""});
}

TEST_CASE("regex asks for the whole completion") {
  CHECK(matches("<think>a\nb</think> 4", "<think>.*</think> \\d") == 1.0);
  CHECK(matches("<think>a</think> 4<end>", "<think>.*</think> \\d") == 1.0);
  CHECK(matches("<think>a</think> 42", "<think>.*</think> \\d") == 0.0);
  CHECK(matches("x<think>a</think> 4", "<think>.*</think> \\d") == 0.0);
  CHECK(matches("", "a+") == 0.0);
  CHECK(matches(std::string(1 << 20, 'a') + "b", "(a+)+") ==
        0.0);  // exponential where one goes back
  CHECK(matches("\xff\xfe", ".*") == 0.0);
  CHECK_THROWS_WITH(make_reward("regex", {}), Catch::Contains("rollout.reward_options.regex"));
  CHECK_THROWS_WITH(matches("a", "("), Catch::Contains("missing )"));
}

double choice(std::string_view text, std::string_view answer, const std::string& separator = "") {
  RewardOptions options;
  options.separator = separator;
  return make_reward("multiple_choice", options)({"", text, answer});
}

TEST_CASE("multiple_choice reads the letter named last") {
  for (const char* right : {"B",
                            "b",
                            "(B)",
                            "B.",
                            "B)",
                            "Answer: B",
                            "The answer is B.",
                            "the answer is (B)",
                            "**B**",
                            "The correct answer is **B**",
                            "\\boxed{B}",
                            "\\boxed{\\text{B}}",
                            "\\boxed{(b)}",
                            "(A) is wrong, so (B)",
                            "Answer: A. No, wait. Answer: B",
                            "A. no\nB. yes",
                            "I think so.\nB",
                            "Option B is right.",
                            "Final answer: option B",
                            "Answer: $B$",
                            "B. Paris"}) {
    INFO(right);
    CHECK(choice(right, "B") == 1.0);
  }
  for (const char* wrong :
       {"", "A", "(B) or rather (A)", "Both are fine", "\\boxed{B} no, \\boxed{A}", "\\boxed{B",
        "The answer is a number", "bad", "Answer: Bob", "C", "B or not"}) {
    INFO(wrong);
    CHECK(choice(wrong, "B") == 0.0);
  }
  CHECK(choice("B", "(B) Paris") == 1.0);
  CHECK(choice("A\n#### B", "B", "####") == 1.0);
  CHECK(choice("(B)\n#### A", "B", "####") == 0.0);
  CHECK_THROWS_WITH(choice("", ""), Catch::Contains("names no letter"));
  CHECK_THROWS_AS(choice("hm", "hm"), RewardUnavailable);
}

TEST_CASE("rollout.reward names rewards with weights") {
  using Parsed = std::vector<WeightedReward>;
  CHECK(parse_rewards("exact_match") == Parsed{{"exact_match", 1.0}});
  CHECK(parse_rewards(" math_answer , regex*0.2,length * -1e-2") ==
        Parsed{{"math_answer", 1.0}, {"regex", 0.2}, {"length", -0.01}});
  CHECK(parse_rewards("length*+2") == Parsed{{"length", 2.0}});
  CHECK(parse_rewards(" worker ").empty());  // workers have rewards of their own
  CHECK_THROWS_WITH(parse_rewards("worker, length"), Catch::Contains("reward 'worker' is unknown"));
  CHECK_THROWS_WITH(RewardSet("worker", {}), Catch::Contains("rollout.reward is worker"));
  CHECK_THROWS_WITH(parse_rewards(""), Catch::Contains("a reward is missing"));
  CHECK_THROWS_WITH(parse_rewards("length,"), Catch::Contains("a reward is missing"));
  CHECK_THROWS_WITH(parse_rewards("lenght"), Catch::Contains("did you mean length?"));
  CHECK_THROWS_WITH(parse_rewards("length * x"),
                    Catch::Contains("'x'") && Catch::Contains("length * x"));
  CHECK_THROWS_WITH(parse_rewards("length *"), Catch::Contains("is no finite number"));
  CHECK_THROWS_WITH(parse_rewards("length * 1 * 2"), Catch::Contains("is no finite number"));
  CHECK_THROWS_WITH(parse_rewards("length * nan"), Catch::Contains("is no finite number"));
  CHECK_THROWS_WITH(parse_rewards("length, length * 2"), Catch::Contains("named twice"));
}

TEST_CASE("the weighted total of a rollout's rewards") {
  const auto recipe = parse_rewards("exact_match, length * 0.5");
  CHECK(weighted_total({{"exact_match", 1.0}, {"length", -0.5}}, recipe) == 0.75);
  CHECK(weighted_total({{"length", -0.5}, {"exact_match", 1.0}, {"style", 9.0}}, recipe) == 0.75);
  CHECK(weighted_total({{"own", 2.0}, {"other", 3.0}}, recipe) ==
        5.0);  // a worker with rewards of its own
  CHECK_THROWS_WITH(weighted_total({{"exact_match", 1.0}}, recipe),
                    Catch::Contains("no reward 'length'"));
  CHECK_THROWS_WITH(weighted_total({{"length", 1.0}, {"style", 1.0}}, recipe),
                    Catch::Contains("'exact_match'"));
  CHECK_THROWS_WITH(weighted_total({}, recipe), Catch::Contains("no reward"));
}

TEST_CASE("a set scores a batch in order, whatever the number of threads") {
  const RewardSet set("exact_match, length * 0.5", {});
  std::vector<std::string> texts;
  std::vector<RewardInput> inputs;
  for (int i = 0; i < 100; ++i) {
    texts.push_back(std::to_string(i % 3));
  }
  for (int i = 0; i < 100; ++i) {
    inputs.push_back({"", texts[i], "1", i, 100});
  }
  for (const int64_t threads : {1, 8, 200}) {
    const auto scores = set.score_all(inputs, threads);
    REQUIRE(scores.size() == 100);
    for (int i = 0; i < 100; ++i) {
      CHECK(scores[i].raw ==
            NamedRewards{{"exact_match", i % 3 == 1 ? 1.0 : 0.0}, {"length", 0.0 - i / 100.0}});
      CHECK(scores[i].total == Approx((i % 3 == 1 ? 1.0 : 0.0) - i / 200.0));
      CHECK(scores[i].failure.empty());
    }
  }
  CHECK(set.score_all({}, 8).empty());
}

}  // namespace
}  // namespace ringside::rl
