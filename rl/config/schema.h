// Schema of the configuration: each key's type, its range or list of values, its sentence and its
// member of Config. Loading, dumping, suggestions, defaults.yaml and the tests read this one table;
// its rows are in the files of the sections (sections.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// An interval of numbers; `above` excludes the lower end, `below` the upper.
struct NumberRange {
  double low = -std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::max();
  bool above = false;
  bool below = false;

  // Whether `value` is in the range. False for NaN.
  bool holds(double value) const;
  // The range in words for error messages: "at least 1", "above 0 and at most 1".
  std::string describe() const;
};

struct IntegerSlot {
  int64_t* value;
  NumberRange range;
};
struct RealSlot {
  double* value;
  NumberRange range;
};
struct BoolSlot {
  bool* value;
};
// The text with its relative paths made absolute from a folder.
// Throws: std::invalid_argument with the problem of a text that has none of the forms it may have.
using ResolvePaths = std::string (*)(const std::string& text, const std::filesystem::path& folder);

struct TextSlot {
  std::string* value;
  ResolvePaths resolve = nullptr;  // null: the text names no file
};
// A file or folder, or several files (data_files.h). Made absolute when set; "" stays "".
struct PathSlot {
  std::string* value;
  ResolvePaths resolve;
};
// One value of a fixed list.
struct ChoiceSlot {
  std::vector<std::string_view> names;
  std::function<std::string_view()> get;
  std::function<void(std::size_t)> set;
};
using Slot = std::variant<IntegerSlot, RealSlot, BoolSlot, TextSlot, PathSlot, ChoiceSlot>;

struct Field {
  std::string key;  // dotted, e.g. "algorithm.advantage.eps"
  Slot slot;
  std::string sentence;  // what the key means
  // Whether a run may be resumed with another value: it says where and how fast the run trains, not
  // what it learns.
  bool may_change_on_resume = false;
  // Whether it stands among the first of its section: what the recipes and READMEs set most.
  bool often_set = false;
};

// One Field per key, in the order of configs/defaults.yaml. The slots point into `config`, which
// must outlive them.
std::vector<Field> fields_of(Config& config);

// The sentences of sections, by dotted name.
using SectionSentences = std::map<std::string, std::string, std::less<>>;
SectionSentences section_sentences();

// Every dotted key, in the same order.
// Thread safety: safe to call concurrently.
const std::vector<std::string>& known_keys();

// The member's current value as YAML text without quotes. Floating-point numbers have the shortest
// form that reads back to the same value.
std::string value_text(const Slot& slot);

}  // namespace ringside::rl
