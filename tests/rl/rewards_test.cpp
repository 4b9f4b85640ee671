// A reward that reads the wrong part of a completion trains the wrong thing without a word: which
// separator counts, where the answer ends, and that no model output, however broken, earns a point
// or an exception.
#include <catch2/catch.hpp>
#include <string>

#include "rl/rewards/exact_match.h"
#include "rl/rewards/length_penalty.h"
#include "rl/rewards/reward.h"

namespace ringside::rl {
namespace {

double exact(std::string_view completion, std::string_view answer,
             const std::string& separator = "", const std::string& stop = "") {
  return make_reward("exact_match", {separator, stop})({"prompt", completion, answer});
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
  CHECK(exact("044469;", "044469", "", ";") == 1.0);
  CHECK(exact("044469;junk", "044469", "", ";") == 1.0);
  CHECK(exact("a;b=044469;", "044469", "=", ";") == 1.0);
  CHECK(exact("04;4469", "044469", "", ";") == 0.0);
  CHECK(exact("044469;", "044469") == 0.0);
}

TEST_CASE("exact_match survives whatever a model writes") {
  const std::string bytes("\0\xff\xfe=\x80;", 6);
  CHECK(exact(bytes, "1", "=", ";") == 0.0);
  CHECK(exact("====", "1", "==") == 0.0);
  CHECK(exact(std::string(100000, '='), "1", "=") == 0.0);
}

TEST_CASE("final_answer tells a missing separator from an empty answer") {
  CHECK_FALSE(final_answer("abc", "=", "").has_value());
  REQUIRE(final_answer("abc=", "=", "").has_value());
  CHECK(final_answer("abc=", "=", "")->empty());
}

TEST_CASE("an unknown reward is an error that lists the known ones") {
  CHECK_THROWS_WITH(make_reward("exact_mach", {}),
                    Catch::Contains("'exact_mach'") && Catch::Contains("exact_match"));
  CHECK(reward_names() == std::vector<std::string_view>{"exact_match"});
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

}  // namespace
}  // namespace ringside::rl
