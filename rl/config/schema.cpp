#include "rl/config/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "rl/config/sections.h"

namespace ringside::rl {
namespace {

template <class T>
std::string number_text(T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  // A whole double keeps its point, so that it reads as a real number again.
  if (std::is_same_v<T, double> && text.find_first_not_of("-0123456789") == std::string::npos) {
    text += ".0";
  }
  return text;
}

FieldList all_rows(Config& config) {
  FieldList fields;
  fields.integer("seed", config.seed, at_least(0),
                 "random seed of sampling, shuffling and random initialisation");
  add_model_section(fields, config.model);
  add_data_section(fields, config.data);
  add_rollout_section(fields, config.rollout);
  add_algorithm_section(fields, config.algorithm);
  add_training_sections(fields, config.optimizer, config.lora, config.train);
  add_parallel_sections(fields, config.parallel, config.sp);
  add_bridge_sections(fields, config.bridge, config.weights);
  add_output_sections(fields, config.checkpoint, config.log, config.eval);
  return fields;
}

// The rows of a section, whose keys have `prefix` characters before their names in it: those that
// are set often, the others, its sections in the order of their first rows.
std::vector<Field> arranged(std::vector<Field> fields, std::size_t prefix) {
  std::vector<Field> result, others;
  std::vector<std::pair<std::string, std::vector<Field>>> sections;
  for (Field& field : fields) {
    const std::size_t dot = field.key.find('.', prefix);
    if (dot == std::string::npos) {
      (field.often_set ? result : others).push_back(std::move(field));
      continue;
    }
    const std::string name = field.key.substr(0, dot);
    auto section = std::find_if(sections.begin(), sections.end(),
                                [&](const auto& one) { return one.first == name; });
    if (section == sections.end()) {
      section = sections.emplace(section, name, std::vector<Field>{});
    }
    section->second.push_back(std::move(field));
  }
  const auto append = [&](std::vector<Field> more) {
    std::move(more.begin(), more.end(), std::back_inserter(result));
  };
  append(std::move(others));
  for (auto& [name, rows] : sections) {
    append(arranged(std::move(rows), name.size() + 1));
  }
  return result;
}

}  // namespace

bool NumberRange::holds(double value) const {
  const bool over = above ? value > low : value >= low;
  const bool under = below ? value < high : value <= high;
  return over && under;
}

std::string NumberRange::describe() const {
  const NumberRange unbounded;
  const auto bound = [](double value) {
    return value == std::trunc(value) ? number_text(static_cast<int64_t>(value))
                                      : number_text(value);
  };
  std::string text;
  if (low != unbounded.low) {
    text = (above ? "above " : "at least ") + bound(low);
  }
  if (high != unbounded.high) {
    text += text.empty() ? "" : " and ";
    text += (below ? "below " : "at most ") + bound(high);
  }
  return text.empty() ? "a finite number" : text;
}

void FieldList::often_set(std::string_view section, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const std::string key = std::string(section).append(".").append(name);
    const auto found = std::find_if(fields_.begin(), fields_.end(),
                                    [&](const Field& field) { return field.key == key; });
    if (found == fields_.end()) {
      throw std::out_of_range("often_set: no key " + key);
    }
    found->often_set = true;
  }
}

std::vector<Field> FieldList::take_fields() && { return arranged(std::move(fields_), 0); }

void FieldList::may_change_on_resume(std::string_view key) {
  for (Field& field : fields_) {
    const bool concerned = key.ends_with('.') ? field.key.starts_with(key) : field.key == key;
    field.may_change_on_resume = field.may_change_on_resume || concerned;
  }
}

std::vector<Field> fields_of(Config& config) { return all_rows(config).take_fields(); }

SectionSentences section_sentences() {
  Config config;
  return all_rows(config).take_sections();
}

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = [] {
    Config config;
    std::vector<std::string> names;
    for (const Field& field : fields_of(config)) {
      names.push_back(field.key);
    }
    return names;
  }();
  return keys;
}

std::string value_text(const Slot& slot) {
  struct Writer {
    std::string operator()(const IntegerSlot& s) const { return number_text(*s.value); }
    std::string operator()(const RealSlot& s) const { return number_text(*s.value); }
    std::string operator()(const BoolSlot& s) const { return *s.value ? "true" : "false"; }
    std::string operator()(const TextSlot& s) const { return *s.value; }
    std::string operator()(const PathSlot& s) const { return *s.value; }
    std::string operator()(const ChoiceSlot& s) const { return std::string(s.get()); }
  };
  return std::visit(Writer{}, slot);
}

}  // namespace ringside::rl
