// A schema that lets wrong documents pass pays for them: each keyword with what it accepts and
// refuses, keywords nobody knows refused, and documents that would hang or crash a careless
// validator.
#include <catch2/catch.hpp>
#include <string>

#include "rl/rewards/json_schema.h"
#include "rl/rewards/reward.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

struct Case {
  const char* schema;
  const char* good;  // a JSON array of documents
  const char* bad;
};

TEST_CASE("keywords accept and refuse") {
  for (
      const auto& [schema, good, bad] : {
          Case{"true", "[1]", "[]"},
          {"false", "[]", "[1, null]"},
          {"{}", "[1, {}]", "[]"},
          {R"({"type": "integer"})", "[1, -2, 3.0]", "[1.5, \"1\", null, true]"},
          {R"({"type": ["string", "null"]})", R"(["a", null])", "[1, [], {}]"},
          {R"({"type": "number"})", "[1, 1.5]", R"(["1", true])"},
          {R"({"type": "boolean"})", "[true]", "[0]"},
          {R"({"enum": [1, "a", {"x": []}]})", R"([1, 1.0, "a", {"x": []}])", R"([2, "b", {}])"},
          {R"({"const": null})", "[null]", "[0]"},
          {R"({"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false})",
           R"([{"a": "x"}])", R"([{}, {"a": 1}, {"a": "x", "b": 1}])"},
          {R"({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
           R"([{"x1": 1, "y": "a"}, 5])", R"([{"x1": "a"}, {"y": 1}])"},
          {R"({"propertyNames": {"maxLength": 2}})", R"([{"ab": 1}])", R"([{"abc": 1}])"},
          {R"({"minProperties": 1, "maxProperties": 2})", R"([{"a": 1}, 3])",
           R"([{}, {"a": 1, "b": 1, "c": 1}])"},
          {R"({"dependentRequired": {"a": ["b"]}})", R"([{"a": 1, "b": 1}, {"c": 1}])",
           R"([{"a": 1}])"},
          {R"({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2})", "[[1], [1, 2], 3]",
           R"([[], [1, 2, 3], ["a"]])"},
          {R"({"prefixItems": [{"const": 1}], "items": false})", "[[1], []]", "[[2], [1, 2]]"},
          {R"({"items": [{"const": 1}, {"const": 2}]})", "[[1, 2, 3], [1]]", "[[2]]"},
          {R"({"contains": {"const": 1}})", "[[2, 1]]", "[[], [2]]"},
          {R"({"uniqueItems": true})", R"([[1, "1", [1]], []])",
           R"([[1, 2, 1], [{"a": 1}, {"a": 1}]])"},
          {R"({"minimum": 1, "maximum": 3})", R"([1, 3, "x"])", "[0.5, 4]"},
          {R"({"exclusiveMinimum": 1, "exclusiveMaximum": 3})", "[2]", "[1, 3]"},
          {R"({"multipleOf": 0.1})", "[0.3, 7, 0]", "[0.35]"},
          {R"({"minLength": 2, "maxLength": 3})", R"(["äö", "abc"])", R"(["ä", "abcd"])"},
          {R"({"pattern": "^a+$"})", R"(["aa", 5])", R"(["ab"])"},
          {R"({"allOf": [{"minimum": 1}, {"maximum": 2}]})", "[1]", "[3]"},
          {R"({"anyOf": [{"type": "string"}, {"minimum": 5}]})", R"(["a", 6])", "[1]"},
          {R"({"oneOf": [{"minimum": 1}, {"maximum": 2}]})", "[0, 3]", "[1]"},
          {R"({"not": {"type": "string"}})", "[1]", R"(["a"])"},
          {R"({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 2}})",
           R"(["ab", 2])", R"(["a", 1])"},
          {R"({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}})",
           R"([{"a": 1}])", R"([{"a": "1"}])"},
          {R"({"$ref": "#/$defs/t", "$defs": {"t": {"required": ["v"], "properties": {"next": {"$ref": "#"}}}}})",
           R"([{"v": 1, "next": {"v": 2}}])", R"([{"v": 1, "next": {}}])"},
      }) {
    const JsonSchema validator(json::parse(schema));
    for (const json& document : json::parse(good)) {
      INFO(schema << " should accept " << document);
      CHECK(validator.accepts(document));
    }
    for (const json& document : json::parse(bad)) {
      INFO(schema << " should refuse " << document);
      CHECK_FALSE(validator.accepts(document));
    }
  }
}

TEST_CASE("a schema that cannot be honoured is an error that names the place") {
  for (const auto& [schema, why] :
       {std::pair{R"({"properties": {"a": {"minimun": 1}}})", "/properties/a: keyword 'minimun'"},
        {R"({"unevaluatedProperties": false})", "unevaluatedProperties"},
        {R"({"type": "int"})", "/type"},
        {R"({"required": "a"})", "/required"},
        {R"({"minLength": -1})", "/minLength"},
        {R"({"pattern": "("})", "pattern '('"},
        {R"({"$ref": "#/none"})", "/$ref"},
        {R"({"$ref": "http://x/y"})", "/$ref"},
        {R"({"items": 1})", "/items"},
        {R"({"anyOf": {}})", "/anyOf"},
        {R"({"multipleOf": 0})", "/multipleOf"},
        {"[]", "expected an object"}}) {
    INFO(schema);
    CHECK_THROWS_WITH(JsonSchema(json::parse(schema)), Catch::Contains(why));
  }
}

TEST_CASE("checking ends: circles, products of branches, many items") {
  CHECK_FALSE(JsonSchema(json::parse(R"({"$ref": "#"})")).accepts(1));
  CHECK_FALSE(JsonSchema(json::parse(R"({"not": {"$ref": "#"}})")).accepts(1));
  // Three ways at each of a hundred levels.
  json nested = 1;
  for (int i = 0; i < 100; ++i) {
    nested = json::array({nested});
  }
  CHECK_FALSE(
      JsonSchema(
          json::parse(
              R"({"anyOf": [{"items": {"$ref": "#"}, "minItems": 2}, {"items": {"$ref": "#"}, "maxItems": 0},
                                                   {"items": {"$ref": "#"}, "type": "object"}]})"))
          .accepts(nested));
  json many = json::array();
  for (int i = 0; i < 30000; ++i) {
    many.push_back(i);
  }
  CHECK(JsonSchema(json::parse(R"({"uniqueItems": true})")).accepts(many));
  CHECK_FALSE(
      JsonSchema(json::parse(R"({"pattern": "^(a+)+$"})")).accepts(std::string(50000, 'a') + "b"));
}

double score(std::string_view completion, std::string_view answer, const std::string& file = "") {
  RewardOptions options;
  options.json_schema = file;
  return make_reward("json_schema", options)({"", completion, answer});
}

TEST_CASE("json_schema reads the last block or the whole completion") {
  const char* schema = R"({"type": "object", "required": ["a"]})";
  CHECK(score(R"({"a": 1})", schema) == 1.0);
  CHECK(score("Here:\n```json\n{}\n```\nor\n```json\n{\"a\": 1}\n```\n", schema) == 1.0);
  CHECK(score(R"({"b": 1})", schema) == 0.0);
  CHECK(score("so {\"a\": 1}", schema) == 0.0);
  CHECK(score(R"({"a": NaN})", schema) == 0.0);
  CHECK(score(R"({"a": 1)", schema) == 0.0);
  CHECK(score("", schema) == 0.0);
  CHECK(score("{\"a\": \"\xff\"}", schema) == 0.0);
  CHECK_THROWS_WITH(score(R"({"a": 1})", "no schema"),
                    Catch::Contains("is no usable JSON schema: JSON schema: not valid JSON"));
  CHECK_THROWS_WITH(score(R"({"a": 1})", R"({"tpye": 1})"), Catch::Contains("tpye"));
  CHECK(score(std::string(100000, '['), "{}") == 0.0);
  CHECK(score(std::string(100000, '[') + std::string(100000, ']'), "{}") == 0.0);
  CHECK(score("\"" + std::string(100000, 'x') + "\"", "{}") == 0.0);
  CHECK(score("1e999", "{}") == 0.0);
}

TEST_CASE("json_schema reads the schema from a file") {
  test::TemporaryDirectory directory;
  const auto path = directory.path() / "schema.json";
  test::write_file(path, R"({"type": "integer"})");
  CHECK(score("5", "", path.string()) == 1.0);
  CHECK(score("5.5", "", path.string()) == 0.0);
  test::write_file(path, R"({"tpye": "integer"})");
  CHECK_THROWS_WITH(score("5", "", path.string()),
                    Catch::Contains("schema.json") && Catch::Contains("tpye"));
  CHECK_THROWS_WITH(score("5", "", "/no/such/file"), Catch::Contains("/no/such/file"));
}

}  // namespace
}  // namespace ringside::rl
