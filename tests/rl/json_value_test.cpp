// A call's arguments reach the client as they were meant: numbers, escapes and order survive, and
// text that is not JSON is refused.
#include "rl/chat/json_value.h"

#include <catch2/catch.hpp>
#include <string>

namespace ringside::rl {
namespace {

std::string rewritten(std::string_view text) {
  const auto value = read_json_text(text);
  return value ? to_text(*value) : "refused";
}

TEST_CASE("values are written as Python writes them") {
  // Each as json.dumps(json.loads(text), ensure_ascii=False) of Python 3.11.
  CHECK(rewritten(R"( {"a":1,"b":[true,null,"x"],"a":2} )") ==
        R"({"a": 2, "b": [true, null, "x"]})");
  CHECK(rewritten("[1e5,1E16,1e-5,0.0001,-0,-0.0,12345678901234567890123,1.10]") ==
        "[100000.0, 1e+16, 1e-05, 0.0001, 0, -0.0, 12345678901234567890123, 1.1]");
  CHECK(rewritten("[NaN, Infinity, -Infinity]") == "[NaN, Infinity, -Infinity]");
  CHECK(rewritten(R"(["\u00e9\ud83d\ude00\/\t\u0001", "é"])") == "[\"é😀/\\t\\u0001\", \"é\"]");
  CHECK(rewritten("{}") == "{}");
  CHECK(rewritten("[[], {}]") == "[[], {}]");
}

TEST_CASE("numbers out of range and halves of surrogate pairs stay as they were written") {
  CHECK(rewritten("[1e400, 1e-400]") == "[1e400, 1e-400]");
  CHECK(rewritten(R"(["\ud800x", "\ud800\ud800\udc00"])") ==
        "[\"\\ud800x\", \"\\ud800\xF0\x90\x80\x80\"]");
}

TEST_CASE("text that is not JSON is refused") {
  for (const std::string text :
       {"",      " ",       "{",         "[1,",      "[1,]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "'a'",     "01",        "1.",       "-",    "+1",      ".5",       "1 2",
        "\"a",   "\"\\x\"", "\"\\u12\"", "\"a\nb\"", "nul",  "tru",     "[1}"}) {
    INFO(text);
    CHECK(rewritten(text) == "refused");
  }
  CHECK(rewritten(std::string(400, '[') + std::string(400, ']')) != "refused");
  CHECK(rewritten(std::string(1'000'000, '[')) == "refused");
}

TEST_CASE("a value at the front says how long it is") {
  const auto value = read_json_prefix(R"({"a": 1} tail)");
  REQUIRE(value.has_value());
  CHECK(value->bytes == 8);
  CHECK_FALSE(read_json_prefix(" 1").has_value());
}

}  // namespace
}  // namespace ringside::rl
