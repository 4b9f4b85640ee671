#include "rl/config/recipe_schema.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>
#include <vector>

#include "rl/config/data_files.h"
#include "rl/config/eval_sets.h"
#include "rl/config/load.h"
#include "rl/config/schema.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kIndent = 2;  // of a level of configs/defaults.yaml

template <class T>
void add_range(Json& json, const Range& range) {
  const Range unbounded;
  if (range.low != unbounded.low) {
    json[range.above ? "exclusiveMinimum" : "minimum"] = static_cast<T>(range.low);
  }
  if (range.high != unbounded.high) {
    json[range.below ? "exclusiveMaximum" : "maximum"] = static_cast<T>(range.high);
  }
}

// Type, bounds and default of a key.
struct SlotSchema {
  Json operator()(const IntegerSlot& slot) const {
    Json json = {{"type", "integer"}};
    add_range<std::int64_t>(json, slot.range);
    json["default"] = *slot.value;
    return json;
  }
  Json operator()(const RealSlot& slot) const {
    Json json = {{"type", "number"}};
    add_range<double>(json, slot.range);
    json["default"] = *slot.value;
    return json;
  }
  Json operator()(const BoolSlot& slot) const {
    return {{"type", "boolean"}, {"default", *slot.value}};
  }
  // Any scalar is taken as it is written.
  Json operator()(const TextSlot& slot) const {
    return {{"type", {"string", "number", "boolean"}}, {"default", *slot.value}};
  }
  Json operator()(const PathSlot& slot) const {
    Json types = "string";
    if (slot.resolve == absolute_data_files) {
      types = {"string", "array"};
    } else if (slot.resolve == absolute_eval_sets) {
      types = {"string", "object"};
    }
    return {{"type", types}, {"default", *slot.value}};
  }
  Json operator()(const ChoiceSlot& slot) const {
    Json names = Json::array();
    for (const std::string_view name : slot.names) names.push_back(name);
    return {{"enum", names}, {"default", slot.get()}};
  }
};

Json section(const std::string& comment) {
  Json json = {{"type", "object"}, {"additionalProperties", false}};
  if (!comment.empty()) {
    json["description"] = comment;
  }
  // A section whose keys are all commented out is empty.
  json["type"] = {"object", "null"};
  json["properties"] = Json::object();
  return json;
}

// Puts a key's schema into the sections that its dotted name gives.
void insert(Json& root, const std::string& key, Json json,
            const std::map<std::string, std::string>& comments) {
  Json* at = &root;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const std::string name = key.substr(0, dot);
    const std::string leaf = name.substr(name.rfind('.') + 1);
    Json& properties = (*at)["properties"];
    if (!properties.contains(leaf)) {
      const auto comment = comments.find(name);
      properties[leaf] = section(comment == comments.end() ? "" : comment->second);
    }
    at = &properties[leaf];
  }
  (*at)["properties"][key.substr(key.rfind('.') + 1)] = std::move(json);
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? ""
             : std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

}  // namespace

std::map<std::string, std::string> comments_of(std::string_view yaml) {
  std::map<std::string, std::string> comments;
  std::vector<std::string> path;  // names of the sections around a line, and its own
  std::istringstream lines{std::string(yaml)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = line.find_first_not_of(' ');
    const std::size_t mark = line.find('#');
    const std::string comment =
        mark == std::string::npos ? "" : trimmed(std::string_view(line).substr(mark + 1));
    if (indent == std::string::npos) {
      continue;
    }
    if (indent != mark) {
      path.resize(indent / kIndent);
      path.push_back(line.substr(indent, line.find(':', indent) - indent));
    }
    std::string key;
    for (const std::string& name : path) key += (key.empty() ? "" : ".") + name;
    if (!key.empty() && !comment.empty()) {
      std::string& text = comments[key];
      text += (text.empty() ? "" : " ") + comment;
    }
  }
  return comments;
}

std::string recipe_schema() {
  const auto comments = comments_of(defaults_yaml());
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Ringside recipe"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  Config defaults;
  for (const Field& field : fields_of(defaults)) {
    Json json = std::visit(SlotSchema{}, field.slot);
    if (const auto comment = comments.find(field.key); comment != comments.end()) {
      json["description"] = comment->second;
    }
    insert(root, field.key, std::move(json), comments);
  }
  return root.dump(2) + "\n";
}

}  // namespace ringside::rl
