// Check of a schema before any document is validated: every keyword must be known and of the right
// kind.
#include <re2/re2.h>

#include <array>
#include <stdexcept>

#include "rl/rewards/json_schema.h"
#include "rl/rewards/json_schema_parts.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

enum class Kind {
  kAnnotation,
  kType,
  kArray,
  kAny,
  kSchema,
  kSchemas,
  kSchemaMap,
  kPatternMap,
  kStrings,
  kStringsMap,
  kCount,
  kNumber,
  kFlag,
  kPattern,
  kReference,
  kItems
};

struct Keyword {
  std::string_view name;
  Kind kind;
};

constexpr std::array<Keyword, 48> kKeywords = {{
    {"type", Kind::kType},
    {"enum", Kind::kArray},
    {"const", Kind::kAny},
    {"properties", Kind::kSchemaMap},
    {"required", Kind::kStrings},
    {"additionalProperties", Kind::kSchema},
    {"patternProperties", Kind::kPatternMap},
    {"propertyNames", Kind::kSchema},
    {"minProperties", Kind::kCount},
    {"maxProperties", Kind::kCount},
    {"dependentRequired", Kind::kStringsMap},
    {"items", Kind::kItems},
    {"prefixItems", Kind::kSchemas},
    {"contains", Kind::kSchema},
    {"minItems", Kind::kCount},
    {"maxItems", Kind::kCount},
    {"uniqueItems", Kind::kFlag},
    {"minimum", Kind::kNumber},
    {"maximum", Kind::kNumber},
    {"exclusiveMinimum", Kind::kNumber},
    {"exclusiveMaximum", Kind::kNumber},
    {"multipleOf", Kind::kNumber},
    {"minLength", Kind::kCount},
    {"maxLength", Kind::kCount},
    {"pattern", Kind::kPattern},
    {"allOf", Kind::kSchemas},
    {"anyOf", Kind::kSchemas},
    {"oneOf", Kind::kSchemas},
    {"not", Kind::kSchema},
    {"if", Kind::kSchema},
    {"then", Kind::kSchema},
    {"else", Kind::kSchema},
    {"$ref", Kind::kReference},
    {"$defs", Kind::kSchemaMap},
    {"definitions", Kind::kSchemaMap},
    {"title", Kind::kAnnotation},
    {"description", Kind::kAnnotation},
    {"default", Kind::kAnnotation},
    {"examples", Kind::kAnnotation},
    {"format", Kind::kAnnotation},
    {"$schema", Kind::kAnnotation},
    {"$id", Kind::kAnnotation},
    {"$comment", Kind::kAnnotation},
    {"deprecated", Kind::kAnnotation},
    {"readOnly", Kind::kAnnotation},
    {"writeOnly", Kind::kAnnotation},
    {"discriminator", Kind::kAnnotation},
    {"example", Kind::kAnnotation},
}};

[[noreturn]] void refuse(const std::string& place, const std::string& why) {
  throw std::invalid_argument("JSON schema at " + (place.empty() ? "/" : place) + ": " + why);
}

bool is_strings(const json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
}

bool is_type(const json& value) {
  constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "object", "array",
                                                      "number", "string",  "integer"};
  const auto known = [&](const json& name) {
    return name.is_string() &&
           std::find(kTypes.begin(), kTypes.end(), name.get<std::string>()) != kTypes.end();
  };
  return value.is_array() ? std::all_of(value.begin(), value.end(), known) : known(value);
}

void check_pattern(const std::string& pattern, const std::string& place) {
  const RE2 expression(pattern, RE2::Quiet);
  if (!expression.ok()) {
    refuse(place, "pattern '" + pattern + "': " + expression.error());
  }
}

class SchemaCheck {
 public:
  explicit SchemaCheck(const json& root) : root_(root) {}

  void schema(const json& node, const std::string& place) const {
    if (node.is_boolean()) {
      return;
    }
    if (!node.is_object()) {
      refuse(place, "expected an object, true or false");
    }
    for (const auto& [name, value] : node.items()) {
      const auto found = std::find_if(kKeywords.begin(), kKeywords.end(),
                                      [&, &key = name](const Keyword& k) { return k.name == key; });
      if (found == kKeywords.end()) {
        refuse(place, "keyword '" + name + "' is not supported");
      }
      keyword(found->kind, value, place + "/" + name);
    }
  }

 private:
  void keyword(Kind kind, const json& value, const std::string& place) const {
    const auto expect = [&](bool good, const char* what) {
      if (!good) {
        refuse(place, std::string("expected ") + what);
      }
    };
    switch (kind) {
      case Kind::kAnnotation:
      case Kind::kAny:
        return;
      case Kind::kType:
        return expect(is_type(value), "the name of a type, or an array of them");
      case Kind::kArray:
        return expect(value.is_array(), "an array");
      case Kind::kStrings:
        return expect(is_strings(value), "an array of strings");
      case Kind::kStringsMap:
        expect(value.is_object() && std::all_of(value.begin(), value.end(), is_strings),
               "an object of arrays of strings");
        return;
      case Kind::kCount:
        return expect(value.is_number_unsigned(), "an integer from 0 on");
      case Kind::kNumber:
        expect(value.is_number(), "a number");
        return expect(!place.ends_with("/multipleOf") || value.get<double>() > 0,
                      "a number above 0");
      case Kind::kFlag:
        return expect(value.is_boolean(), "true or false");
      case Kind::kPattern:
        expect(value.is_string(), "a string");
        return check_pattern(value.get<std::string>(), place);
      case Kind::kReference:
        expect(value.is_string(), "a string");
        return expect(resolve_reference(root_, value.get<std::string>()) != nullptr,
                      "\"#\" or \"#/...\" that leads to a part of this schema");
      default:
        return parts(kind, value, place);
    }
  }

  void parts(Kind kind, const json& value, const std::string& place) const {
    if (kind == Kind::kSchema || (kind == Kind::kItems && !value.is_array())) {
      return schema(value, place);
    }
    const bool list = kind == Kind::kSchemas || kind == Kind::kItems;
    if (list ? !value.is_array() : !value.is_object()) {
      refuse(place, list ? "expected an array of schemas" : "expected an object of schemas");
    }
    for (const auto& [name, part] : value.items()) {
      if (kind == Kind::kPatternMap) {
        check_pattern(name, place);
      }
      schema(part, place + "/" + name);
    }
  }

  const json& root_;
};

}  // namespace

const json* resolve_reference(const json& root, const std::string& reference) {
  if (reference == "#") {
    return &root;
  }
  if (!reference.starts_with("#/")) {
    return nullptr;
  }
  try {
    const json::json_pointer pointer(reference.substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const json::exception&) {
    return nullptr;
  }
}

JsonSchema::JsonSchema(json schema) : schema_(std::move(schema)) {
  SchemaCheck(schema_).schema(schema_, "");
}

}  // namespace ringside::rl
