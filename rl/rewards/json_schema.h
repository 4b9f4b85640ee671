// JSON Schema for documents that nobody trusts: a validator whose time and stack are bounded by the
// schema and the document's size, because its patterns are RE2's, its recursion is counted and
// uniqueItems is a sort.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ringside::rl {

// Objects and arrays in one another beyond this are refused, in documents and in schemas.
inline constexpr int kMaxJsonDepth = 128;

// The greatest number of brackets open at one time outside strings; linear, without recursion.
int json_depth(std::string_view text);

// The keywords of drafts 6 to 2020-12 that language-model schemas use: type, enum, const,
// properties, required, additionalProperties, patternProperties, propertyNames, minProperties,
// maxProperties, dependentRequired, items, prefixItems, contains, minItems, maxItems, uniqueItems,
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength (code
// points), pattern, allOf, anyOf, oneOf, not, if, then, else, $ref ("#" or "#/...", beside other
// keywords too), true and false. Annotations (title, description, default, examples, format,
// $schema, $id, $comment, deprecated, readOnly, writeOnly, discriminator) assert nothing.
class JsonSchema {
 public:
  // Throws std::invalid_argument naming the place: a keyword that is not in the list (an unknown
  // constraint must not pass in silence), a value of the wrong kind, a $ref that leads nowhere or
  // out of the schema, a pattern RE2 refuses.
  explicit JsonSchema(nlohmann::json schema);

  // Pure, thread-safe. False too when a $ref leads in a circle deeper than kMaxJsonDepth, or when
  // checking takes more than a million steps.
  bool accepts(const nlohmann::json& document) const;

 private:
  nlohmann::json schema_;
};

}  // namespace ringside::rl
