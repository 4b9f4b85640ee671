// JSON Schema validator for untrusted documents. Its time and stack are bounded by the sizes of
// schema and document: patterns use RE2, recursion depth is counted, and uniqueItems sorts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ringside::rl {

// Greatest nesting depth of objects and arrays. Deeper documents and schemas are rejected.
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
  // Throws: std::invalid_argument naming the place, for a keyword that is not in the list (an
  // unknown constraint must not be ignored silently), a value of the wrong kind, a $ref without a
  // target or out of the schema, or a pattern that RE2 rejects.
  explicit JsonSchema(nlohmann::json schema);

  // Whether the document satisfies the schema. Also false when a $ref recurses deeper than
  // kMaxJsonDepth, or when validation takes more than a million steps.
  // Thread safety: pure function.
  bool accepts(const nlohmann::json& document) const;

 private:
  nlohmann::json schema_;
};

}  // namespace ringside::rl
