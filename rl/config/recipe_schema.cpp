#include "rl/config/recipe_schema.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>
#include <vector>

#include "rl/config/data_files.h"
#include "rl/config/eval_sets.h"
#include "rl/config/rejections.h"
#include "rl/config/schema.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
void add_range(Json& json, const NumberRange& range) {
  const NumberRange unbounded;
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
    add_range<int64_t>(json, slot.range);
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
    if (slot.resolve == checked_rejections) {
      return {{"type", {"string", "array"}}, {"default", *slot.value}};
    }
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
    for (const std::string_view name : slot.names) {
      names.push_back(name);
      if (is_truth_value(name)) {
        names.push_back(name == "true");
      }
    }
    const std::string value(slot.get());
    return {{"enum", names},
            {"default", is_truth_value(value) ? Json(value == "true") : Json(value)}};
  }

 private:
  // YAML reads these words as booleans.
  static bool is_truth_value(std::string_view name) { return name == "true" || name == "false"; }
};

Json section(const std::string& sentence) {
  Json json = {{"type", "object"}, {"additionalProperties", false}};
  if (!sentence.empty()) {
    json["description"] = sentence;
  }
  // A section whose keys are all commented out is empty.
  json["type"] = {"object", "null"};
  json["properties"] = Json::object();
  return json;
}

// Puts a key's schema into the sections that its dotted name gives.
void insert(Json& root, const std::string& key, Json json, const SectionSentences& sentences) {
  Json* at = &root;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const std::string name = key.substr(0, dot);
    const std::string leaf = name.substr(name.rfind('.') + 1);
    Json& properties = (*at)["properties"];
    if (!properties.contains(leaf)) {
      const auto sentence = sentences.find(name);
      properties[leaf] = section(sentence == sentences.end() ? "" : sentence->second);
    }
    at = &properties[leaf];
  }
  (*at)["properties"][key.substr(key.rfind('.') + 1)] = std::move(json);
}

}  // namespace

std::string recipe_schema() {
  const SectionSentences sentences = section_sentences();
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Ringside recipe"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", Json::object()}};
  Config defaults;
  for (const Field& field : fields_of(defaults)) {
    Json json = std::visit(SlotSchema{}, field.slot);
    json["description"] = field.sentence;
    insert(root, field.key, std::move(json), sentences);
  }
  return root.dump(2) + "\n";
}

}  // namespace ringside::rl
