#include "engine/tokenizer/onig_pattern.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

using IsPattern = std::function<bool(const std::string&)>;
constexpr std::size_t kNone = std::string_view::npos;

// Members of classes. \w alone has six digits of Latin-1 that \w inside a class has not.
constexpr std::string_view kWordInClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kHex = "0-9A-Fa-f";

[[noreturn]] void refuse(std::string_view what) {
  throw std::runtime_error("'" + std::string(what) + "' is not supported");
}

std::string lower_letters(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return plain;
}

// Long names of general categories, and POSIX names, as members of a class.
const std::map<std::string, std::string, std::less<>>& long_names() {
  static const std::map<std::string, std::string, std::less<>> kNames = {
      {"letter", "\\p{L}"},
      {"uppercaseletter", "\\p{Lu}"},
      {"lowercaseletter", "\\p{Ll}"},
      {"titlecaseletter", "\\p{Lt}"},
      {"modifierletter", "\\p{Lm}"},
      {"otherletter", "\\p{Lo}"},
      {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
      {"mark", "\\p{M}"},
      {"number", "\\p{N}"},
      {"decimalnumber", "\\p{Nd}"},
      {"punctuation", "\\p{P}"},
      {"symbol", "\\p{S}"},
      {"separator", "\\p{Z}"},
      {"other", "\\p{C}"},
      {"alpha", "\\p{Alphabetic}"},
      {"digit", "\\p{Nd}"},
      {"alnum", "\\p{Alphabetic}\\p{Nd}"},
      {"punct", "\\p{P}\\p{S}"},
      {"space", "\\p{White_Space}"},
      {"upper", "\\p{Uppercase}"},
      {"lower", "\\p{Lowercase}"},
      {"word", std::string(kWordInClass)},
  };
  return kNames;
}

// A set of characters: members of a PCRE2 class, and patterns of one character.
struct CharacterSet {
  std::string members;
  std::vector<std::string> parts;

  void add(const CharacterSet& other) {
    members += other.members;
    parts.insert(parts.end(), other.parts.begin(), other.parts.end());
  }

  // A pattern that matches one character of the set, or one that is not in it.
  std::string pattern(bool negated) const {
    if (parts.empty()) {
      return std::string(negated ? "[^" : "[") + members + "]";
    }
    std::string any = members.empty() ? "" : "[" + members + "]";
    for (const std::string& part : parts) {
      any += (any.empty() ? "" : "|") + part;
    }
    return negated ? "(?:(?!" + any + ")(?s:.))" : "(?:" + any + ")";
  }
};

// Reads a pattern from left to right.
class Translator {
 public:
  Translator(std::string_view pattern, const IsPattern& is_pattern)
      : rest_(pattern), is_pattern_(is_pattern) {}

  std::string run() {
    while (!rest_.empty()) {
      step();
    }
    return std::move(out_);
  }

 private:
  bool accept(std::string_view text) {
    if (!rest_.starts_with(text)) {
      return false;
    }
    rest_.remove_prefix(text.size());
    return true;
  }

  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view take_character() {
    return take(std::max<std::size_t>(1, utf8_char_bytes(rest_)));
  }

  // Up to and with the next `end`.
  std::string_view take_through(char end, std::string_view what) {
    const std::size_t at = rest_.find(end);
    if (at == kNone) {
      throw std::runtime_error("'" + std::string(what) + "' has no end");
    }
    return take(at + 1);
  }

  void step() {
    const char c = rest_.front();
    if (c == '(') {
      open_group();
    } else if (c == ')') {
      out_ += take(1);
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
    } else if (c == '{' && interval()) {
      return;
    } else if (std::string_view("*+?|").find(c) != kNone) {
      out_ += take(1);
    } else {
      atom_ = out_.size();
      out_ += c == '\\' ? escape() : c == '[' ? bracket() : std::string(take_character());
    }
  }

  void open_group() {
    const bool at_start = out_.empty() || (!groups_.empty() && groups_content_ == out_.size());
    groups_.push_back(out_.size());
    out_ += take(1);
    if (accept("?")) {
      out_ += "?";
      group_kind(at_start);
    }
    groups_content_ = out_.size();
  }

  // What stands behind "(?".
  void group_kind(bool at_start) {
    for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (accept(kind)) {
        out_ += kind;
        return;
      }
    }
    if (rest_.starts_with("<")) {
      out_ += take_through('>', "(?<");
      return;
    }
    const std::size_t end = rest_.find_first_not_of("i-");
    if (end == 0 || end == kNone || (rest_[end] != ':' && rest_[end] != ')')) {
      refuse("(?" + std::string(rest_.substr(0, 1)));
    }
    if (rest_[end] == ')' && !at_start) {
      refuse("(?i) inside a group");  // it reaches beyond an alternative there
    }
    out_ += take(end);
    if (accept(":")) {
      out_ += ":";
    }
  }

  void wrap_atom() {
    out_.insert(atom_, "(?:");
    out_ += ")";
  }

  // {n}, {n,}, {,m} or {n,m} with what follows it; false if this is no interval.
  bool interval() {
    const std::size_t close = rest_.find('}');
    const std::string_view inside = close == kNone ? "" : rest_.substr(1, close - 1);
    const std::size_t comma = inside.find(',');
    const bool digits = inside.find_first_not_of("0123456789,") == kNone;
    if (inside.empty() || inside == "," || !digits || inside.rfind(',') != comma) {
      return false;
    }
    out_ += comma == 0 ? "{0" + std::string(inside) + "}" : std::string(rest_.substr(0, close + 1));
    rest_.remove_prefix(close + 1);
    if (rest_.starts_with("+") || (comma == kNone && rest_.starts_with("?"))) {
      wrap_atom();
      out_ += take(1);
    }
    return true;
  }

  // The set of an escape of several characters; nullopt leaves the escape for the caller. word:
  // the members of \w.
  std::optional<CharacterSet> escaped_set(std::string_view word) {
    const char kind = rest_.size() < 2 ? '\0' : rest_[1];
    const auto some = [&](std::string members) {
      rest_.remove_prefix(2);
      return CharacterSet{std::move(members), {}};
    };
    const auto others = [&](std::string_view members) {
      rest_.remove_prefix(2);
      return CharacterSet{{}, {"[^" + std::string(members) + "]"}};
    };
    switch (kind) {
      case 's':
        return some("\\p{White_Space}");
      case 'S':
        return some("\\P{White_Space}");
      case 'd':
        return some("\\p{Nd}");
      case 'D':
        return some("\\P{Nd}");
      case 'w':
        return some(std::string(word));
      case 'W':
        return others(word);
      case 'h':
        return some(std::string(kHex));
      case 'H':
        return others(kHex);
      case 'p':
      case 'P':
        return property(kind == 'P');
      default:
        return std::nullopt;
    }
  }

  // \p{...}, \P{...}, \pL
  CharacterSet property(bool negated) {
    const std::string_view whole = rest_;
    rest_.remove_prefix(2);
    if (!accept("{")) {
      return {std::string(negated ? "\\P" : "\\p") + std::string(take(1)), {}};
    }
    negated ^= accept("^");
    std::string_view name = take_through('}', whole.substr(0, 3));
    name.remove_suffix(1);
    const auto known = long_names().find(lower_letters(name));
    if (known != long_names().end() && known->first == "punct") {  // unlike [:punct:]
      return {negated ? "\\P{P}" : "\\p{P}", {}};
    }
    if (known != long_names().end()) {
      return negated ? CharacterSet{{}, {"[^" + known->second + "]"}}
                     : CharacterSet{known->second, {}};
    }
    const std::string plain(name);
    const bool is_script = name.size() > 2 && is_pattern_("\\p{sc:" + plain + "}");
    return {(negated ? "\\P{" : "\\p{") + (is_script ? "sc:" + plain : plain) + "}", {}};
  }

  // An escape of one character, which means the same inside a class.
  std::string escaped_character() {
    rest_.remove_prefix(1);
    if (rest_.empty()) {
      throw std::runtime_error("it ends with a backslash");
    }
    if (accept("v")) {
      return "\\x{0B}";
    }
    if (accept("u")) {
      return "\\x{" + std::string(take(4)) + "}";
    }
    if (rest_.starts_with("x{")) {
      return "\\" + std::string(take_through('}', "\\x{"));
    }
    const char c = rest_.front();
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (is_letter && std::string_view("tnrfaex").find(c) == kNone) {
      refuse("\\" + std::string(1, c));
    }
    return "\\" + std::string(take_character());
  }

  // An escape outside of a class.
  std::string escape() {
    if (const auto set = escaped_set(kWord)) {
      return set->parts.size() == 1 && set->members.empty() ? set->parts.front()
                                                            : set->pattern(false);
    }
    const std::string word = "[" + std::string(kWord) + "]";
    const std::string behind = "(?<=" + word + ")", no_behind = "(?<!" + word + ")";
    const std::string ahead = "(?=" + word + ")", no_ahead = "(?!" + word + ")";
    if (accept("\\b")) {
      return "(?:" + behind + no_ahead + "|" + no_behind + ahead + ")";
    }
    if (accept("\\B")) {
      return "(?:" + behind + ahead + "|" + no_behind + no_ahead + ")";
    }
    if (accept("\\O")) {
      return "(?s:.)";
    }
    const char kind = rest_.size() < 2 ? '\0' : rest_[1];
    if (std::string_view("AzZGKRXN").find(kind) != kNone) {
      return std::string(take(2));
    }
    if (rest_.starts_with("\\k<")) {
      return std::string(take_through('>', "\\k<"));
    }
    return escaped_character();
  }

  std::string bracket() {
    rest_.remove_prefix(1);
    const bool negated = accept("^");
    return character_class().pattern(negated);
  }

  // The inside of a class up to its "]".
  CharacterSet character_class() {
    CharacterSet set;
    if (accept("]")) {  // at the beginning it is a member
      set.members += "\\]";
    }
    while (!accept("]")) {
      if (rest_.empty()) {
        throw std::runtime_error("a '[' has no ']'");
      }
      if (accept("&&")) {
        const std::string left = set.pattern(false), right = character_class().pattern(false);
        return {{}, {"(?:(?=" + right + ")" + left + ")"}};
      }
      add_member(set);
    }
    return set;
  }

  void add_member(CharacterSet& set) {
    if (rest_.front() == '\\') {
      if (const auto escaped = escaped_set(kWordInClass)) {
        set.add(*escaped);
      } else {
        set.members += accept("\\b") ? "\\x{08}" : escaped_character();
      }
    } else if (rest_.starts_with("[:")) {
      posix_class(set);
    } else if (accept("[")) {
      const bool negated = accept("^");
      const CharacterSet inner = character_class();
      const bool dash = inner.members.starts_with('-') || inner.members.ends_with('-');
      if (negated || dash || set.members.ends_with('-')) {
        set.parts.push_back(inner.pattern(negated));
      } else {
        set.add(inner);
      }
    } else {
      set.members += take_character();
    }
  }

  void posix_class(CharacterSet& set) {
    const std::string_view whole = rest_.substr(0, rest_.find(":]") + 2);
    rest_.remove_prefix(2);
    const bool negated = accept("^");
    const auto known = long_names().find(rest_.substr(0, rest_.find(":]")));
    if (known == long_names().end()) {
      refuse(whole);
    }
    rest_.remove_prefix(known->first.size() + 2);
    if (negated) {
      set.parts.push_back("[^" + known->second + "]");
    } else {
      set.members += known->second;
    }
  }

  std::string_view rest_;
  const IsPattern& is_pattern_;
  std::string out_;
  std::size_t atom_ = 0;                // where the last atom begins in out_
  std::vector<std::size_t> groups_;     // where open groups begin
  std::size_t groups_content_ = kNone;  // where the content of the last group begins
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const IsPattern& is_pattern) {
  return Translator(pattern, is_pattern).run();
}

}  // namespace ringside::engine
