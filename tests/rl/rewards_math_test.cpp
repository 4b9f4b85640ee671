// A grader that calls a right answer wrong teaches nothing, and one that calls a wrong answer right
// teaches that: forms that mean the same, forms that only look alike, and text that no grader
// should choke on.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "rl/rewards/answer_check.h"
#include "rl/rewards/math_answer.h"
#include "rl/rewards/math_number.h"

namespace ringside::rl {
namespace {

struct Pair {
  const char* a;
  const char* b;
};

TEST_CASE("answers that mean the same") {
  for (const auto& [a, b] : {Pair{"42", "42"},
                             {"42.0", "42"},
                             {" 42. ", "42"},
                             {"+42", "42"},
                             {"- 5", "-5"},
                             {"\\$42", "42"},
                             {"$42$", "42"},
                             {"1,234", "1234"},
                             {"1{,}234.50", "1234.5"},
                             {"1,234,567", "1234567"},
                             {".5", "0.5"},
                             {"\\frac{1}{2}", "0.5"},
                             {"\\dfrac{1}{2}", "1/2"},
                             {"\\frac12", "1/2"},
                             {"-\\frac{3}{4}", "-0.75"},
                             {"\\frac{-3}{4}", "-3/4"},
                             {"2/4", "1/2"},
                             {"1 1/2", "1.5"},
                             {"1\\frac{1}{2}", "3/2"},
                             {"-1\\frac{1}{2}", "-1.5"},
                             {"50%", "0.5"},
                             {"50\\%", "50"},
                             {"50%", "50%"},
                             {"1e3", "1000"},
                             {"1.2\\times 10^{3}", "1200"},
                             {"1.2*10^3", "1200"},
                             {"10^{-2}", "0.01"},
                             {"x = 5", "5"},
                             {"x=\\frac{1}{2}", "0.5"},
                             {"f(x) = 2", "2"},
                             {"\\theta=3", "3"},
                             {"5 cm", "5"},
                             {"5\\text{ cm}", "5"},
                             {"5\\mathrm{~cm}^2", "5"},
                             {"42 apples", "42"},
                             {"12cm", "12"},
                             {"90^\\circ", "90"},
                             {"90^{\\circ}", "90"},
                             {"90°", "90 degrees"},
                             {"\\text{Monday}", "monday"},
                             {"(1, 2)", "(1,2)"},
                             {"\\left( 1, \\frac{1}{2} \\right)", "(1.0, 0.5)"},
                             {"\\{1,2,3\\}", "\\{3, 2, 1\\}"},
                             {"1, 2", "2,1"},
                             {"\\{1, 2\\}", "2, 1"},
                             {"x=1, y=2", "y=2, x=1"},
                             {"[0, 1)", "\\left[0,1\\right)"},
                             {"\\sqrt{2}", "\\sqrt{2}"},
                             {"2 \\pi", "2\\pi"},
                             {"x^{2}+1", "x^2 + 1"},
                             {"x \\in [0,1]", "[0,1]"},
                             {"3.1415926", "3.1415927"},
                             {"1e300", "1.0e300"},
                             {"\\(7\\)", "7"},
                             {"1/3", "0.33333333"}}) {
    INFO(a << " against " << b);
    CHECK(same_math(a, b, 1e-6));
    CHECK(same_math(b, a, 1e-6));
  }
}

TEST_CASE("answers that only look alike") {
  for (const auto& [a, b] : {Pair{"42", "43"},
                             {"", ""},
                             {"", "0"},
                             {"x", "y"},
                             {"5x", "5"},
                             {"5 x", "5"},
                             {"2pi", "2"},
                             {"2 pi", "2"},
                             {"2 \\pi", "2"},
                             {"5 million", "5"},
                             {"1/0", "0"},
                             {"0/0", "0/1"},
                             {"(1,2)", "(2,1)"},
                             {"(1,2)", "[1,2]"},
                             {"(1,2]", "(1,2)"},
                             {"(1,234)", "1234"},
                             {"1,2", "1,2,3"},
                             {"1,1", "1,2"},
                             {"\\{1,2\\}", "(1,2)"},
                             {"1,23", "123"},
                             {"50%", "5"},
                             {"nan", "0"},
                             {"inf", "1e400"},
                             {"0x10", "16"},
                             {"-1\\frac{1}{2}", "-0.5"},
                             {"2+2", "4"},
                             {"6*7", "42"},
                             {"x=5", "x=6"},
                             {"\\sqrt{2}", "\\sqrt{3}"},
                             {"A", "a"},
                             {"\\text{Monday}", "Tuesday"},
                             {"1e-9", "1e-3"},
                             {"3.14", "3.15"},
                             {"1000001", "1000003"},
                             {"10^{999999999999}", "10^{999999999998}"},
                             {"5 or 6", "5"}}) {
    INFO(a << " against " << b);
    CHECK_FALSE(same_math(a, b, 1e-6));
    CHECK_FALSE(same_math(b, a, 1e-6));
  }
}

TEST_CASE("the tolerance is relative above 1 and absolute below") {
  CHECK(same_math("100.5", "100", 0.01));
  CHECK_FALSE(same_math("102", "100", 0.01));
  CHECK(same_math("0.005", "0", 0.01));
  CHECK_FALSE(same_math("0.02", "0", 0.01));
  CHECK(same_math("7", "7.0", 0));
}

TEST_CASE("where the answer is in a completion") {
  CHECK(math_answer_of("1 \\boxed{2} 3", "", {}) == "2");
  CHECK(math_answer_of("\\boxed{2} #### 3", "####", {}) == "2");
  CHECK(math_answer_of("work 1\n#### 3 ", "####", {}) == "3");
  CHECK(math_answer_of("#### 3<end> 4", "####", std::vector<std::string>{"<end>"}) == "3");
  CHECK(math_answer_of("so it is 1,234.5 dollars.", "", {}) == "1,234.5");
  CHECK(math_answer_of("first 3, then -7.", "", {}) == "-7");
  CHECK(math_answer_of("7-5", "", {}) == "5");
  CHECK(math_answer_of("it is \\frac{1}{2}.", "", {}) == "\\frac{1}{2}");
  CHECK(math_answer_of("it is 3/4!", "", {}) == "3/4");
  CHECK(math_answer_of("about 25%", "", {}) == "25%");
  CHECK(math_answer_of("about 1.5 \\times 10^{3} m", "", {}) == "1.5 \\times 10^{3}");
  CHECK(math_answer_of("5 \\boxed{2", "", {}).empty());
  CHECK(math_answer_of("nothing", "", {}).empty());
  CHECK(math_answer_of("", "", {}).empty());
}

TEST_CASE("the reward reads both sides") {
  RewardOptions options;
  options.separator = "####";
  const Reward reward = make_reward("math_answer", options);
  CHECK(reward({"", "thus \\boxed{\\frac{1}{2}}", "0.5"}) == 1.0);
  CHECK(reward({"", "thus 18", "Janet eats 3 ... #### 18"}) == 1.0);
  CHECK(reward({"", "thus 3", "Janet eats 3 ... #### 18"}) == 0.0);
  CHECK(reward({"", "\\boxed{18}", "\\boxed{18}"}) == 1.0);
  CHECK_THROWS_WITH(reward({"", "3", ""}), Catch::Contains("is missing or blank"));
  CHECK_THROWS_AS(reward({"", "3", "\\boxed{ }"}), RewardUnavailable);
  options.tolerance = -1;
  CHECK_THROWS_AS(make_reward("math_answer", options), std::invalid_argument);
}

TEST_CASE("an answer in the form of GSM8K is what follows #### on its last line") {
  const Reward reward = make_reward("math_answer", {});
  const char* solution = "Natalia sold 48/2 = 24 clips in May.\nTogether 48+24 = 72.\n#### 72";
  CHECK(reward({"", "so it is \\boxed{72}", solution}) == 1.0);
  CHECK(reward({"", "48 and 24 are 72", solution}) == 1.0);
  CHECK(reward({"", "\\boxed{24}", solution}) == 0.0);
  CHECK(reward({"", "1200", "#### 1,200"}) == 1.0);
  CHECK(gsm8k_answer("#### 5\n") == "5");
  CHECK_FALSE(gsm8k_answer("#### Step 1\nthen 5"));  // a heading
  CHECK_FALSE(gsm8k_answer("a #### 5"));
}

TEST_CASE("an answer that no completion can match is found before training") {
  const auto problem = [](const std::string& name, const std::string& answer,
                          const std::string& kind = "", const std::string& separator = "") {
    RewardOptions options;
    options.separator = separator;
    return unmatched_answer(name, answer, kind, options);
  };
  for (const char* good :
       {"72", "x^2 + 1", "\\frac{1}{2}", "(1, 2)", "a cat", "3 apples", "48 + 24 = 72\n#### 72",
        "we see that\nit is \\boxed{4}", "\\left(-\\infty, -2\\right) \\cup (2, \\infty)"}) {
    INFO(good);
    CHECK(problem("math_answer", good) == "");
  }
  CHECK_THAT(problem("math_answer", "Together they are 24 and so they have 72 in all"),
             Catch::Contains("no completion can score") && Catch::Contains("#### "));
  CHECK_THAT(problem("math_answer", "First 24.\nThen 72."), Catch::Contains("no completion"));
  CHECK(problem("math_answer", "First 24.\nThen ### 72", "", "###") == "");
  CHECK_THAT(problem("math_answer", "[\"17\",\"x\"]", "an array"),
             Catch::Contains("is an array, which math_answer cannot compare"));
  CHECK_THAT(problem("exact_match", "true", "a boolean"), Catch::Contains("is a boolean"));
  CHECK(problem("exact_match", "the whole text, which is long enough to be prose") == "");
  CHECK_THAT(problem("exact_match", "so\n#### 72"), Catch::Contains("compares the whole of it"));
  CHECK_THAT(problem("exact_match", "24 = 24", "", "="), Catch::Contains("no completion"));
  CHECK(problem("code_tests", "[]", "an array") == "");
}

TEST_CASE("adversarial answers are rejected in bounded time") {
  const Reward reward = make_reward("math_answer", {});
  const std::string braces = "\\boxed{" + std::string(1000000, '{');
  CHECK(reward({"", braces, "1"}) == 0.0);
  CHECK(reward({"", braces + std::string(1000001, '}'), "1"}) == 0.0);
  CHECK(reward({"", std::string(10 << 20, '9'), "1"}) == 0.0);
  CHECK(reward({"", "\\boxed{" + std::string(10 << 20, '9') + "}", "1"}) == 0.0);
  CHECK(reward({"", "\\boxed{9^9^9^9^9}", "1"}) == 0.0);
  CHECK(reward({"", "\\boxed{1e999999999}", "1"}) == 0.0);
  CHECK(reward({"", "\\boxed{" + std::string(8000, ',') + "}", std::string(8000, ',') + "1"}) ==
        0.0);
  CHECK(reward({"", "\\boxed{\xff\xfe}", "1"}) == 0.0);
  std::string many;
  for (int i = 0; i < 1000000; ++i) {
    many += "\\boxed{";
  }
  CHECK(reward({"", many, "1"}) == 0.0);
}

}  // namespace
}  // namespace ringside::rl
