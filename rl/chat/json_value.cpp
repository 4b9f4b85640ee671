#include "rl/chat/json_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>

namespace ringside::rl {
namespace {

constexpr int kMaxDepth = 500;

void append_utf8(uint32_t code, std::string& text) {
  const auto byte = [&](uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0U | (code >> 6U));
    byte(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    byte(0xE0U | (code >> 12U));
    byte(0x80U | ((code >> 6U) & 0x3FU));
    byte(0x80U | (code & 0x3FU));
  } else {
    byte(0xF0U | (code >> 18U));
    byte(0x80U | ((code >> 12U) & 0x3FU));
    byte(0x80U | ((code >> 6U) & 0x3FU));
    byte(0x80U | (code & 0x3FU));
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A recursive-descent reader. Every function returns false on text that is not JSON.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool value(JsonValue& out) {
    if (at_ >= text_.size() || depth_ > kMaxDepth) {
      return false;
    }
    switch (text_[at_]) {
      case '{':
        return object(out);
      case '[':
        return array(out);
      case '"':
        out.kind = JsonValue::Kind::kString;
        return string(out.text);
      default:
        return word(out) || number(out);
    }
  }

  void space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != text_.npos) {
      ++at_;
    }
  }

  std::size_t at() const { return at_; }

 private:
  bool take(std::string_view expected) {
    const bool here = text_.substr(at_).starts_with(expected);
    at_ += here ? expected.size() : 0;
    return here;
  }

  bool word(JsonValue& out) {
    struct Word {
      std::string_view text;
      JsonValue::Kind kind;
    };
    constexpr std::array<Word, 6> kWords = {{{"null", JsonValue::Kind::kNull},
                                             {"true", JsonValue::Kind::kTrue},
                                             {"false", JsonValue::Kind::kFalse},
                                             {"NaN", JsonValue::Kind::kFloat},
                                             {"Infinity", JsonValue::Kind::kFloat},
                                             {"-Infinity", JsonValue::Kind::kFloat}}};
    const auto* found =
        std::find_if(kWords.begin(), kWords.end(), [&](const Word& one) { return take(one.text); });
    if (found == kWords.end()) {
      return false;
    }
    out.kind = found->kind;
    out.text = found->text;
    return true;
  }

  std::size_t digits_from(std::size_t at) const {
    while (at < text_.size() && is_digit(text_[at])) {
      ++at;
    }
    return at;
  }

  bool number(JsonValue& out) {
    const std::size_t first = at_ + (text_[at_] == '-' ? 1 : 0);
    std::size_t end = digits_from(first);
    if (end == first) {
      return false;
    }
    if (text_[first] == '0') {
      end = first + 1;  // a zero at the front stands alone
    }
    out.kind = JsonValue::Kind::kInteger;
    if (end < text_.size() && text_[end] == '.' && digits_from(end + 1) > end + 1) {
      end = digits_from(end + 1);
      out.kind = JsonValue::Kind::kFloat;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const std::size_t sign = end + 1;
      const bool has_sign = sign < text_.size() && (text_[sign] == '+' || text_[sign] == '-');
      const std::size_t from = sign + (has_sign ? 1 : 0);
      if (digits_from(from) > from) {
        end = digits_from(from);
        out.kind = JsonValue::Kind::kFloat;
      }
    }
    const std::string_view number = text_.substr(at_, end - at_);
    at_ = end;
    out.text = out.kind == JsonValue::Kind::kFloat
                   ? python_float(number).value_or(std::string(number))
                   : std::string(number == "-0" ? "0" : number);
    return true;
  }

  bool string(std::string& out) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') {
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20 || (c == '\\' && !escape(out))) {
        return false;
      }
      if (c != '\\') {
        out.push_back(c);
      }
    }
    return false;
  }

  bool escape(std::string& out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) {
      return false;
    }
    const char letter = text_[at_++];
    if (letter == 'u') {
      return unicode_escape(out);
    }
    const std::size_t index = kLetters.find(letter);
    if (index == std::string_view::npos) {
      return false;
    }
    out.push_back(kMeanings[index]);
    return true;
  }

  bool hex(uint32_t& code) {
    if (at_ + 4 > text_.size()) {
      return false;
    }
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
    at_ += 4;
    return error == std::errc() && end == begin + 4;
  }

  bool unicode_escape(std::string& out) {
    uint32_t code = 0;
    if (!hex(code)) {
      return false;
    }
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      const std::size_t after_first = at_;
      at_ += 2;
      uint32_t low = 0;
      if (!hex(low)) {
        return false;
      }
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
      } else {
        at_ = after_first;  // an escape of its own
      }
    }
    append_utf8(code, out);
    return true;
  }

  bool array(JsonValue& out) {
    out.kind = JsonValue::Kind::kArray;
    ++at_;
    ++depth_;
    space();
    for (bool first = true; !take("]"); first = false) {
      if (!first && !take(",")) {
        return false;
      }
      space();
      out.items.emplace_back();
      if (!value(out.items.back())) {
        return false;
      }
      space();
    }
    --depth_;
    return true;
  }

  bool object(JsonValue& out) {
    out.kind = JsonValue::Kind::kObject;
    ++at_;
    ++depth_;
    space();
    for (bool first = true; !take("}"); first = false) {
      if (!first && !take(",")) {
        return false;
      }
      space();
      std::string name;
      if (at_ >= text_.size() || text_[at_] != '"' || !string(name)) {
        return false;
      }
      space();
      if (!take(":")) {
        return false;
      }
      space();
      JsonValue member;
      if (!value(member)) {
        return false;
      }
      out.members.emplace_back(std::move(name), std::move(member));
      space();
    }
    --depth_;
    keep_last_of_name(out);
    return true;
  }

  // A name's first place with its last value. Sorted, so that many members cost little.
  static void keep_last_of_name(JsonValue& out) {
    auto& members = out.members;
    std::vector<std::size_t> order(members.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return members[a].first < members[b].first;
    });
    std::vector<bool> repeated(members.size());
    for (std::size_t i = 0; i < order.size();) {
      std::size_t end = i + 1;
      for (; end < order.size() && members[order[end]].first == members[order[i]].first; ++end) {
        repeated[order[end]] = true;
      }
      if (end > i + 1) {
        members[order[i]].second = std::move(members[order[end - 1]].second);
      }
      i = end;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!repeated[i]) {
        if (kept != i) {
          members[kept] = std::move(members[i]);
        }
        ++kept;
      }
    }
    members.resize(kept);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

void append_quoted(std::string_view text, std::string& out) {
  constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b";
  constexpr std::string_view kLetters = "\"\\nrtfb";
  constexpr std::string_view kHex = "0123456789abcdef";
  out.push_back('"');
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t special = kSpecial.find(text[i]);
    const auto after = static_cast<unsigned char>(i + 2 < text.size() ? text[i + 1] : 0);
    if (special != std::string_view::npos) {
      out += {'\\', kLetters[special]};
    } else if (byte < 0x20) {
      out += {'\\', 'u', '0', '0', kHex[byte >> 4U], kHex[byte & 15U]};
    } else if (byte == 0xED && after >= 0xA0) {  // half of a surrogate pair, which UTF-8 lacks
      const auto last = static_cast<unsigned char>(text[i + 2]);
      const uint32_t code = 0xD000U | ((after & 0x3FU) << 6U) | (last & 0x3FU);
      out += {'\\', 'u', 'd', kHex[(code >> 8U) & 15U], kHex[(code >> 4U) & 15U], kHex[code & 15U]};
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  out.push_back('"');
}

void append_value(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::kString:
      append_quoted(value.text, out);
      return;
    case JsonValue::Kind::kArray:
      out.push_back('[');
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        out += i == 0 ? "" : ", ";
        append_value(value.items[i], out);
      }
      out.push_back(']');
      return;
    case JsonValue::Kind::kObject:
      out.push_back('{');
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        out += i == 0 ? "" : ", ";
        append_quoted(value.members[i].first, out);
        out += ": ";
        append_value(value.members[i].second, out);
      }
      out.push_back('}');
      return;
    default:
      out += value.text;  // a word or a number
  }
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.first == name; });
  return found == members.end() ? nullptr : &found->second;
}

const std::string* JsonValue::find_string(std::string_view name) const {
  const JsonValue* value = find(name);
  return value != nullptr && value->kind == Kind::kString ? &value->text : nullptr;
}

std::optional<JsonPrefix> read_json_prefix(std::string_view text) {
  Reader reader(text);
  JsonPrefix prefix;
  if (!reader.value(prefix.value)) {
    return std::nullopt;
  }
  prefix.bytes = reader.at();
  return prefix;
}

std::optional<JsonValue> read_json_text(std::string_view text) {
  Reader reader(text);
  JsonValue value;
  reader.space();
  if (!reader.value(value)) {
    return std::nullopt;
  }
  reader.space();
  if (reader.at() != text.size()) {
    return std::nullopt;
  }
  return value;
}

std::string to_text(const JsonValue& value) {
  std::string out;
  append_value(value, out);
  return out;
}

std::string json_quoted(std::string_view text) {
  std::string out;
  append_quoted(text, out);
  return out;
}

std::optional<std::string> python_float(std::string_view number) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  // Shortest digits that read back as the same double: "d.ddde+XX".
  std::array<char, 40> buffer{};
  const auto written =
      std::to_chars(buffer.begin(), buffer.end(), std::abs(value), std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), written.ptr - buffer.data());
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const std::size_t from = e + 1 + (shortest[e + 1] == '+' ? 1 : 0);
  std::from_chars(shortest.data() + from, shortest.data() + shortest.size(), exponent);
  std::string digits(shortest.substr(0, 1));
  digits += e > 1 ? shortest.substr(2, e - 2) : "";
  const std::string sign = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    const std::string power = std::to_string(std::abs(exponent));
    return sign + digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") +
           (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) {
    return sign + "0." + std::string(-exponent - 1, '0') + digits;
  }
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  }
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

bool is_finite(const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kFloat) {
    return python_float(value.text).has_value();
  }
  return std::all_of(value.items.begin(), value.items.end(), is_finite) &&
         std::all_of(value.members.begin(), value.members.end(),
                     [](const auto& member) { return is_finite(member.second); });
}

}  // namespace ringside::rl
