#include "rl/rewards/json_schema.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "rl/rewards/json_schema_parts.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

constexpr int64_t kMostSteps = 1000000;
constexpr int kMostNested = 4 * kMaxJsonDepth;  // subschemas applied within one another

bool has_type(const json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
  }
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
         (type == "number" && value.is_number()) || (type == "string" && value.is_string());
}

int64_t code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

bool is_match(const std::string& text, const std::string& pattern) {
  return RE2::PartialMatch(text, RE2(pattern, RE2::Quiet));
}

bool all_different(const json& array) {
  std::vector<const json*> items;
  for (const json& item : array) {
    items.push_back(&item);
  }
  std::sort(items.begin(), items.end(), [](const json* a, const json* b) { return *a < *b; });
  return std::adjacent_find(items.begin(), items.end(),
                            [](const json* a, const json* b) { return *a == *b; }) == items.end();
}

class Validation {
 public:
  explicit Validation(const json& root) : root_(root) {}

  bool valid(const json& schema, const json& value) {
    if (++steps_ > kMostSteps || depth_ >= kMostNested) {
      exhausted_ = true;
    }
    if (exhausted_) {
      return false;
    }
    if (schema.is_boolean()) {
      return schema.get<bool>();
    }
    if (!schema.is_object()) {
      return false;  // a $ref may point to a value that is no schema
    }
    ++depth_;
    const bool result = plain(schema, value) && combined(schema, value) &&
                        (!value.is_number() || number(schema, value)) &&
                        (!value.is_string() || string(schema, value)) &&
                        (!value.is_array() || array(schema, value)) &&
                        (!value.is_object() || object(schema, value));
    --depth_;
    return result;
  }

  bool exhausted() const { return exhausted_; }

 private:
  // Calls check(the keyword's value) when the schema has it; true otherwise.
  template <class Check>
  static bool with(const json& schema, const char* keyword, Check check) {
    const auto found = schema.find(keyword);
    return found == schema.end() || check(*found);
  }

  bool plain(const json& schema, const json& value) {
    return with(schema, "type",
                [&](const json& type) {
                  return type.is_string()
                             ? has_type(value, type.get<std::string>())
                             : std::any_of(type.begin(), type.end(), [&](const json& t) {
                                 return has_type(value, t.get<std::string>());
                               });
                }) &&
           with(schema, "enum",
                [&](const json& values) {
                  return std::find(values.begin(), values.end(), value) != values.end();
                }) &&
           with(schema, "const", [&](const json& only) { return only == value; });
  }

  bool combined(const json& schema, const json& value) {
    const auto accepts = [&](const json& part) { return valid(part, value); };
    return with(schema, "$ref",
                [&](const json& name) {
                  const json* part = resolve_reference(root_, name);
                  return part != nullptr && valid(*part, value);
                }) &&
           with(schema, "allOf",
                [&](const json& parts) {
                  return std::all_of(parts.begin(), parts.end(), accepts);
                }) &&
           with(schema, "anyOf",
                [&](const json& parts) {
                  return std::any_of(parts.begin(), parts.end(), accepts);
                }) &&
           with(schema, "oneOf",
                [&](const json& parts) {
                  return std::count_if(parts.begin(), parts.end(), accepts) == 1;
                }) &&
           with(schema, "not", [&](const json& part) { return !valid(part, value); }) &&
           with(schema, "if", [&](const json& part) {
             return with(schema, valid(part, value) ? "then" : "else", accepts);
           });
  }

  static bool number(const json& schema, const json& value) {
    const double x = value.get<double>();
    return with(schema, "minimum", [&](const json& bound) { return value >= bound; }) &&
           with(schema, "maximum", [&](const json& bound) { return value <= bound; }) &&
           with(schema, "exclusiveMinimum", [&](const json& bound) { return value > bound; }) &&
           with(schema, "exclusiveMaximum", [&](const json& bound) { return value < bound; }) &&
           with(schema, "multipleOf", [&](const json& unit) {
             const double times = x / unit.get<double>();
             return std::isfinite(times) &&
                    std::abs(times - std::round(times)) <= 1e-9 * std::max(1.0, std::abs(times));
           });
  }

  static bool string(const json& schema, const json& value) {
    const auto& text = value.get_ref<const std::string&>();
    return with(schema, "minLength",
                [&](const json& n) { return code_points(text) >= n.get<int64_t>(); }) &&
           with(schema, "maxLength",
                [&](const json& n) { return code_points(text) <= n.get<int64_t>(); }) &&
           with(schema, "pattern",
                [&](const json& pattern) { return is_match(text, pattern.get<std::string>()); });
  }

  bool array(const json& schema, const json& value) {
    const std::size_t size = value.size();
    return with(schema, "minItems", [&](const json& n) { return size >= n.get<std::size_t>(); }) &&
           with(schema, "maxItems", [&](const json& n) { return size <= n.get<std::size_t>(); }) &&
           with(schema, "uniqueItems",
                [&](const json& on) { return !on.get<bool>() || all_different(value); }) &&
           with(schema, "contains",
                [&](const json& part) {
                  return std::any_of(value.begin(), value.end(),
                                     [&](const json& item) { return valid(part, item); });
                }) &&
           items(schema, value);
  }

  // prefixItems (in older drafts an array under items) applies by position; items applies to all
  // other elements.
  bool items(const json& schema, const json& value) {
    const auto prefix = schema.find("prefixItems");
    const auto rest = schema.find("items");
    const bool old = rest != schema.end() && rest->is_array();
    const json* places = old ? &*rest : prefix != schema.end() ? &*prefix : nullptr;
    const std::size_t placed = places == nullptr ? 0 : places->size();
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i < placed ? !valid((*places)[i], value[i])
                     : !old && rest != schema.end() && !valid(*rest, value[i])) {
        return false;
      }
    }
    return true;
  }

  bool object(const json& schema, const json& value) {
    const auto has = [&](const json& name) { return value.contains(name.get<std::string>()); };
    return with(schema, "required",
                [&](const json& names) { return std::all_of(names.begin(), names.end(), has); }) &&
           with(schema, "minProperties",
                [&](const json& n) { return value.size() >= n.get<std::size_t>(); }) &&
           with(schema, "maxProperties",
                [&](const json& n) { return value.size() <= n.get<std::size_t>(); }) &&
           with(schema, "dependentRequired",
                [&](const json& dependent) {
                  return std::all_of(
                      dependent.items().begin(), dependent.items().end(), [&](const auto& item) {
                        return !value.contains(item.key()) ||
                               std::all_of(item.value().begin(), item.value().end(), has);
                      });
                }) &&
           with(schema, "propertyNames",
                [&](const json& part) {
                  return std::all_of(value.items().begin(), value.items().end(),
                                     [&](const auto& item) { return valid(part, item.key()); });
                }) &&
           properties(schema, value);
  }

  bool properties(const json& schema, const json& value) {
    const auto named = schema.find("properties");
    const auto patterned = schema.find("patternProperties");
    for (const auto& [name, member] : value.items()) {
      bool known = false;
      if (named != schema.end() && named->contains(name)) {
        known = true;
        if (!valid((*named)[name], member)) {
          return false;
        }
      }
      if (patterned != schema.end()) {
        for (const auto& [pattern, part] : patterned->items()) {
          if (!is_match(name, pattern)) {
            continue;
          }
          known = true;
          if (!valid(part, member)) {
            return false;
          }
        }
      }
      const auto other = [&, &m = member](const json& part) { return valid(part, m); };
      if (!known && !with(schema, "additionalProperties", other)) {
        return false;
      }
    }
    return true;
  }

  const json& root_;
  int64_t steps_ = 0;
  int depth_ = 0;
  bool exhausted_ = false;
};

}  // namespace

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      i += c == '\\' ? 1 : 0;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

bool JsonSchema::accepts(const json& document) const {
  Validation validation(schema_);
  const bool valid = validation.valid(schema_, document);
  return valid && !validation.exhausted();
}

}  // namespace ringside::rl
