// JSON as Python's json module reads and writes it: integers of any length, NaN and Infinity, the
// last of two members of one name, ", " and ": " between values.
// Linear in the text and safe for any bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::rl {

struct JsonValue {
  enum class Kind { kNull, kTrue, kFalse, kInteger, kFloat, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  // A string's characters (UTF-8; an escaped half of a surrogate pair alone is the three bytes that
  // UTF-8 would give it), or a number as Python writes it.
  std::string text;
  std::vector<JsonValue> items;
  std::vector<std::pair<std::string, JsonValue>> members;  // in order of first appearance

  // The value of a member; null when this is no object or has no such member.
  const JsonValue* find(std::string_view name) const;
  // The same for a member that is a string.
  const std::string* find_string(std::string_view name) const;
};

// A value, and how many bytes of the text it took.
struct JsonPrefix {
  JsonValue value;
  std::size_t bytes = 0;
};

// The value at the very front of a text (JSONDecoder.raw_decode); nullopt when there is none, or
// it is nested deeper than 500 levels.
std::optional<JsonPrefix> read_json_prefix(std::string_view text);

// The one value of a text, white space around it allowed (json.loads); nullopt as above, and when
// anything follows.
std::optional<JsonValue> read_json_text(std::string_view text);

// The value as json.dumps(value, ensure_ascii=False) writes it, except for halves of a surrogate
// pair alone, which are escaped. A number out of a double's range stays as it was written, where
// Python writes Infinity.
std::string to_text(const JsonValue& value);

// A string of JSON, with its quotes.
std::string json_quoted(std::string_view text);

// A double as Python's repr() writes it, from a number's text; nullopt when it is out of range.
std::optional<std::string> python_float(std::string_view number);

// Whether no number in the value is NaN, infinite or out of a double's range.
bool is_finite(const JsonValue& value);

}  // namespace ringside::rl
