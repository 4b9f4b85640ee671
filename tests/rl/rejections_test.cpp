// Guards: a list of algorithm.correction.reject that is read otherwise than it is written, or a
// wrong one that is taken.
#include "rl/config/rejections.h"

#include <catch2/catch.hpp>

#include "rl/config/load.h"

using namespace ringside::rl;

namespace {

std::string checked(const std::string& text) { return checked_rejections(text, ""); }

}  // namespace

TEST_CASE("criteria read back as they were written, and a k1 has two bounds") {
  const std::string text = checked("[{by: seq_mean_k1, high: 1.25}, {by: token_k2, high: 3}]");
  CHECK(text == R"([{"by":"seq_mean_k1","low":0.8,"high":1.25},{"by":"token_k2","high":3.0}])");
  CHECK(checked(text) == text);
  const auto rejections = parse_rejections(text);
  REQUIRE(rejections.size() == 2);
  CHECK(rejections[0].level == RejectionLevel::kMean);
  CHECK(rejections[0].statistic == RejectionStatistic::kK1);
  CHECK(rejections[0].low == 0.8);
  CHECK(rejections[1].level == RejectionLevel::kToken);
  CHECK(rejections[1].high == 3.0);
  CHECK(checked("[]").empty());
  CHECK(parse_rejections("").empty());
}

TEST_CASE("a recipe may hold the criteria as a list of YAML") {
  const auto loaded =
      load_config({}, {"algorithm.correction.reject=[{by: token_k1, low: 0.5, high: 2}]",
                       "model.path=/m", "data.train=/d.jsonl"});
  CHECK(loaded.config.algorithm.correction.reject == R"([{"by":"token_k1","low":0.5,"high":2.0}])");
}

TEST_CASE("a wrong list of criteria is refused with what is expected") {
  const auto wrong = GENERATE(values<std::pair<std::string, std::string>>({
      {"token_k1", "expected [{by: CRITERION"},
      {"[token_k1]", "an entry without \"by\""},
      {"[{by: token_k4, high: 1}]", "expected one of token_k1, token_k2"},
      {"[{by: seq_max_k1, high: 1}]", "expected one of token_k1, token_k2"},
      {"[{by: token_k1}]", "no number for high of token_k1"},
      {"[{by: token_k1, low: x, high: 1}]", "no number for low of token_k1"},
      {"[{by: token_k2, low: 0.1, high: 1}]", "expected high alone"},
      {"[{by: token_k1, low: 3, high: 2}]", "keep nothing"},
      {"[{by: token_k1, low: 0, high: 2}]", "keep nothing"},
      {"[{by: token_k3, high: -1}]", "keep nothing"},
      {"[{by: token_k3, high: 1}, {by: token_k3, high: 2}]", "names token_k3 twice"},
      {"[{by: token_k3, upper: 1}]", "has the field \"upper\""},
      {"[{by: token_k3", "is no list"},
  }));
  CAPTURE(wrong.first);
  CHECK_THROWS_WITH(checked(wrong.first), Catch::Contains(wrong.second));
}
