// What each configuration key accepts: its type, its range or its list of words, and the member of
// Config it names. The one table that loading, dumping, suggestions and the tests all read.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// An interval of numbers; `above` excludes the lower end, `below` the upper.
struct Range {
  double low = -std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::max();
  bool above = false;
  bool below = false;

  // False for NaN too.
  bool holds(double value) const;
  // "at least 1", "above 0 and at most 1": what an error says was expected.
  std::string describe() const;
};

struct IntegerSlot {
  std::int64_t* value;
  Range range;
};
struct RealSlot {
  double* value;
  Range range;
};
struct BoolSlot {
  bool* value;
};
struct TextSlot {
  std::string* value;
};
// A file or folder: made absolute when it is set, "" stays "".
struct PathSlot {
  std::string* value;
};
// One word of a fixed list.
struct ChoiceSlot {
  std::vector<std::string_view> names;
  std::function<std::string_view()> get;
  std::function<void(std::size_t)> set;
};
using Slot = std::variant<IntegerSlot, RealSlot, BoolSlot, TextSlot, PathSlot, ChoiceSlot>;

struct Field {
  std::string key;  // dotted, e.g. "algorithm.advantage.eps"
  Slot slot;
};

// One Field for every key, in the order of configs/defaults.yaml. The slots point into `config`,
// which must outlive them.
std::vector<Field> fields_of(Config& config);

// Every dotted key, in the same order.
const std::vector<std::string>& known_keys();

// The member's present value as YAML text without quotes; floating-point numbers in the shortest
// form that reads back to the same value.
std::string value_text(const Slot& slot);

}  // namespace ringside::rl
