#include "rl/chat/schema_values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

constexpr int kMaxSchemaDepth = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string type_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return "boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return "integer";
    case json::value_t::number_float:
      return "number";
    case json::value_t::array:
      return "array";
    case json::value_t::object:
      return "object";
    default:
      return "string";
  }
}

// Names of types in other systems' words.
std::string common_type(const std::string& type) {
  static const std::map<std::string, std::string> kNames = {
      {"str", "string"},     {"text", "string"},      {"varchar", "string"}, {"char", "string"},
      {"enum", "string"},    {"int", "integer"},      {"int32", "integer"},  {"int64", "integer"},
      {"uint", "integer"},   {"uint32", "integer"},   {"uint64", "integer"}, {"long", "integer"},
      {"short", "integer"},  {"unsigned", "integer"}, {"float", "number"},   {"float32", "number"},
      {"float64", "number"}, {"double", "number"},    {"bool", "boolean"},   {"dict", "object"},
      {"arr", "array"},      {"list", "array"},       {"sequence", "array"}};
  const std::string name = lower(python_strip(type));
  const auto found = kNames.find(name);
  return found == kNames.end() ? name : found->second;
}

void add_types(const json& schema, int depth, std::set<std::string>& types) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) {
    types.insert("string");
    return;
  }
  std::set<std::string> own;
  const json type = schema.value("type", json());
  for (const json& one : type.is_array() ? type : json::array({type})) {
    if (one.is_string()) {
      own.insert(one.get<std::string>());
    }
  }
  const json values = schema.value("enum", json());
  for (const json& value : values.is_array() ? values : json::array()) {
    own.insert(type_of(value));
  }
  for (const char* choice : {"anyOf", "oneOf", "allOf"}) {
    const json choices = schema.value(choice, json());
    for (const json& one : choices.is_array() ? choices : json::array()) {
      add_types(one, depth + 1, own);
    }
  }
  if (own.empty()) {
    own.insert("string");
  }
  types.insert(own.begin(), own.end());
}

// A number's text without the "_" that Python allows between two digits; nullopt when one stands
// elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || std::isdigit(text[i - 1]) == 0 ||
               std::isdigit(text[i + 1]) == 0) {
      return std::nullopt;
    }
  }
  return out;
}

// int(value) of Python.
std::optional<std::string> as_integer(std::string_view value) {
  const auto plain = without_underscores(python_strip(value));
  if (!plain) {
    return std::nullopt;
  }
  std::string_view digits = *plain;
  const bool negative = digits.starts_with('-');
  digits.remove_prefix(negative || digits.starts_with('+') ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  const std::size_t zeros = std::min(digits.find_first_not_of('0'), digits.size() - 1);
  digits.remove_prefix(zeros);
  return (negative && digits != "0" ? "-" : "") + std::string(digits);
}

// float(value) of Python, as an integer where it is one.
std::optional<std::string> as_number(std::string_view value) {
  const auto plain = without_underscores(python_strip(value));
  if (!plain || plain->find_first_not_of("0123456789.eE+-") != std::string::npos) {
    return std::nullopt;
  }
  const std::string_view unsigned_text =
      std::string_view(*plain).substr(plain->starts_with('+') ? 1 : 0);
  const auto text = unsigned_text.starts_with('+') ? std::nullopt : python_float(unsigned_text);
  if (!text) {
    return std::nullopt;
  }
  const double number = std::strtod(text->c_str(), nullptr);
  if (number != std::trunc(number)) {
    return text;
  }
  std::array<char, 330> digits{};  // all of the greatest double's
  std::snprintf(digits.data(), digits.size(), "%.0f", number == 0.0 ? 0.0 : number);
  return std::string(digits.data());
}

std::optional<std::string> as_boolean(const std::string& value) {
  const std::string word = lower(python_strip(value));
  if (word == "true" || word == "1") {
    return "true";
  }
  return word == "false" || word == "0" ? std::optional<std::string>("false") : std::nullopt;
}

std::optional<std::string> as_json(const std::string& value) {
  const auto read = read_json_text(value);
  return read && is_finite(*read) ? std::optional(to_text(*read)) : std::nullopt;
}

std::optional<std::string> as_type(const std::string& value, std::string_view type) {
  if (type == "null") {
    return lower(value) == "null" ? std::optional<std::string>("null") : std::nullopt;
  }
  if (type == "integer") {
    return as_integer(value);
  }
  if (type == "number") {
    return as_number(value);
  }
  if (type == "boolean") {
    return as_boolean(value);
  }
  return type == "string" ? json_quoted(value) : as_json(value);
}

}  // namespace

json tool_properties(const json& tools, std::string_view tool) {
  for (const json& one : tools.is_array() ? tools : json::array()) {
    const json function = one.is_object() ? one.value("function", json()) : json();
    if (function.is_object() && function.value("name", json()) == json(std::string(tool))) {
      const json parameters = function.value("parameters", json());
      return parameters.is_object() ? parameters.value("properties", json()) : json();
    }
  }
  return {};
}

std::string value_of_schema(const std::string& value, const json& schema) {
  std::set<std::string> named;
  add_types(schema, 0, named);
  std::set<std::string> types;
  std::transform(named.begin(), named.end(), std::inserter(types, types.end()), common_type);
  for (const char* type : {"null", "integer", "number", "boolean", "object", "array", "string"}) {
    if (types.contains(type)) {
      if (auto text = as_type(value, type)) {
        return *std::move(text);
      }
    }
  }
  return as_json(value).value_or(json_quoted(value));
}

std::string typed_arguments(const std::vector<std::pair<std::string, std::string>>& values,
                            const json& properties) {
  std::vector<std::pair<std::string, std::string>> last;
  for (const auto& [name, value] : values) {
    const auto known =
        std::find_if(last.begin(), last.end(), [&](const auto& one) { return one.first == name; });
    if (known == last.end()) {
      last.emplace_back(name, value);
    } else {
      known->second = value;
    }
  }
  std::string out = "{";
  for (const auto& [name, value] : last) {
    const bool typed =
        properties.is_object() && properties.contains(name) && properties.at(name).is_object();
    out += (out.size() > 1 ? ", " : "") + json_quoted(name) + ": ";
    out += typed ? value_of_schema(value, properties.at(name)) : json_quoted(value);
  }
  return out + "}";
}

}  // namespace ringside::rl
