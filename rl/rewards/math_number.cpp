#include "rl/rewards/math_number.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace ringside::rl {
namespace {

constexpr std::size_t kTail = 64 << 10;
// Longer answers are compared as text only.
constexpr std::size_t kLongestNumber = 256;

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(re2::StringPiece text) { return {text.data(), text.size()}; }

// Plain digits, sign, point and exponent; thousands separators are taken out. Not "inf", "nan" or
// hexadecimal.
std::optional<double> parse_decimal(std::string_view text) {
  static const RE2 form(R"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)");
  if (text.empty() || text.size() > kLongestNumber || !RE2::FullMatch(piece(text), form)) {
    return std::nullopt;
  }
  std::string digits(text);
  std::erase(digits, ',');
  const char* begin = digits.data() + (digits.front() == '+' ? 1 : 0);
  const char* last = digits.data() + digits.size();
  double value = 0.0;
  const auto [end, error] = std::from_chars(begin, last, value);
  if (error != std::errc() || end != last || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

// a/b, with \frac{a}{b} as its other form.
std::optional<double> parse_fraction(std::string_view text) {
  static const RE2 latex(R"(([+-]?)\\frac\{ ?([^{}]*?) ?\}\{ ?([^{}]*?) ?\})");
  static const RE2 slash(R"(([+-]?)\(?([^/()]*[^/() ])\)? ?/ ?\(?([^/()]+)\)?)");
  std::array<re2::StringPiece, 3> part;
  for (const RE2* form : {&latex, &slash}) {
    if (!RE2::FullMatch(piece(text), *form, &part[0], &part[1], &part[2])) {
      continue;
    }
    const auto above = parse_decimal(view(part[1]));
    const auto below = parse_decimal(view(part[2]));
    if (!above || !below || *below == 0.0) {
      return std::nullopt;
    }
    return finite((part[0] == "-" ? -1.0 : 1.0) * *above / *below);
  }
  return std::nullopt;
}

std::optional<double> parse_mixed(std::string_view text) {
  static const RE2 form(R"(([+-]?)(\d+) ?(?: (\d+ ?/ ?\d+)|(\\frac\{ ?\d+ ?\}\{ ?\d+ ?\})))");
  std::array<re2::StringPiece, 4> part;
  if (!RE2::FullMatch(piece(text), form, &part[0], &part[1], &part[2], &part[3])) {
    return std::nullopt;
  }
  const auto whole = parse_decimal(view(part[1]));
  const auto rest = parse_fraction(view(part[2].empty() ? part[3] : part[2]));
  return whole && rest ? finite((part[0] == "-" ? -1.0 : 1.0) * (*whole + *rest)) : std::nullopt;
}

// 1.2*10^{5} and 10^5; an exponent of any size, which pow turns into 0 or infinity.
std::optional<double> parse_power_of_ten(std::string_view text) {
  static const RE2 form(
      R"((?:([+-]?[\d.,]+) ?\* ?|([+-]?))10 ?\^ ?(?:\{ ?([+-]?\d+) ?\}|([+-]?\d+)))");
  std::array<re2::StringPiece, 4> part;
  if (!RE2::FullMatch(piece(text), form, &part[0], &part[1], &part[2], &part[3])) {
    return std::nullopt;
  }
  const auto factor = part[0].empty() ? std::optional<double>(part[1] == "-" ? -1.0 : 1.0)
                                      : parse_decimal(view(part[0]));
  const auto exponent = parse_decimal(view(part[2].empty() ? part[3] : part[2]));
  return factor && exponent ? finite(*factor * std::pow(10.0, *exponent)) : std::nullopt;
}

// The text without words after a number that can only be its unit. "5 x" and "2 pi" are not
// numbers.
std::string_view without_unit(std::string_view text) {
  static const RE2 spaced(
      R"((.*[\d.})]%?) ([A-Za-z]{2,}(?:[ /][A-Za-z]+)*(?:\^(?:\{\d\}|\d))?)[.]?)");
  static const RE2 joined(
      R"((.*\d)(?:mm|cm|dm|km|ft|in|mg|kg|ml|lb|lbs|oz|hr|hrs|min|mins|sec|mph|kmh|km/h|m/s)(?:\^(?:\{\d\}|\d))?)");
  static const RE2 not_a_unit(
      R"((?i)(?:pi|sqrt|log|ln|sin|cos|tan|exp|mod|or|and|to|dozen|hundred|thousand|million|billion|trillion)\b.*)");
  re2::StringPiece number;
  re2::StringPiece unit;
  if (RE2::FullMatch(piece(text), spaced, &number, &unit) && !RE2::FullMatch(unit, not_a_unit)) {
    return view(number);
  }
  if (RE2::FullMatch(piece(text), joined, &number)) {
    return view(number);
  }
  return text;
}

std::optional<double> parse_bare(std::string_view text) {
  for (const auto parse : {parse_decimal, parse_fraction, parse_mixed, parse_power_of_ten}) {
    if (const auto value = parse(text)) {
      return value;
    }
  }
  return std::nullopt;
}

// Replaces every match in turn; each step is linear.
void simplify(std::string& text) {
  struct Step {
    RE2 pattern;
    const char* replacement;
  };
  static const std::array<Step, 14> steps = {{
      {RE2(R"(\\[()\[\]]|\\?\$|€|£)"), ""},
      {RE2(R"(\\(?:left|right|displaystyle|big|Big|bigl|bigr)\b\.?)"), ""},
      {RE2(R"(\\[!,;:> ]|~|\\q?quad\b)"), " "},
      {RE2(R"(\{,\})"), ","},
      {RE2(R"(\\[dtc]frac\b)"), "\\\\frac"},
      {RE2(R"(\\frac ?(\d) ?(\d))"), "\\\\frac{\\1}{\\2}"},
      {RE2(R"(\\frac ?(\d) ?\{)"), "\\\\frac{\\1}{"},
      {RE2(R"(\^ ?(?:\\circ\b|\{ ?\\circ ?\})|\\degree\b|°)"), ""},
      {RE2(R"(\\%)"), "%"},
      {RE2(R"(\\(?:times|cdot)\b|×|·)"), "*"},
      {RE2(R"(−|–)"), "-"},
      // After another term, \text is its unit, with the unit's power; alone it is the answer.
      {RE2(R"(([\d})%]) *\\(?:text|mathrm|textrm|mbox|operatorname)(?:bf|it)? ?\{[^{}]*\}(?:\^(?:\{\d\}|\d))?)"),
       "\\1"},
      {RE2(R"(\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|emph) ?\{([^{}]*)\})"),
       "\\1"},
      {RE2(R"(([\^_])\{([A-Za-z0-9])\})"), "\\1\\2"},
  }};
  for (const Step& step : steps) {
    RE2::GlobalReplace(&text, step.pattern, step.replacement);
  }
}

}  // namespace

std::string plain_math(std::string_view text, bool with_spaces) {
  std::string plain(text);
  simplify(plain);
  std::string result;
  for (const char c : plain) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!space) {
      result.push_back(c);
    } else if (with_spaces && !result.empty() && result.back() != ' ') {
      result.push_back(' ');
    }
  }
  while (!result.empty() &&
         (result.back() == ' ' || result.back() == '.' || result.back() == ',')) {
    result.pop_back();
  }
  return result;
}

std::optional<MathNumber> parse_math_number(std::string_view plain) {
  if (plain.empty() || plain.size() > kLongestNumber) {
    return std::nullopt;
  }
  for (std::string_view text : {plain, without_unit(plain)}) {
    const bool percent = text.ends_with('%');
    text = text.substr(0, text.size() - (percent ? 1 : 0));
    text = text.substr(0, text.find_last_not_of(' ') + 1);
    // "- 5" and a number in braces of its own.
    if (text.size() > 2 && text.front() == '{' && text.back() == '}') {
      text = text.substr(1, text.size() - 2);
    }
    std::string closed;
    if (text.size() > 2 && (text.starts_with("- ") || text.starts_with("+ "))) {
      closed = std::string(text.substr(0, 1)).append(text.substr(2));
      text = closed;
    }
    if (const auto value = parse_bare(text)) {
      return MathNumber{*value, percent};
    }
  }
  return std::nullopt;
}

bool same_number(const MathNumber& a, const MathNumber& b, double tolerance) {
  const auto near = [tolerance](double x, double y) {
    // The difference of two finite values may be infinite; the comparison is then false.
    return std::abs(x - y) <= tolerance * std::max({1.0, std::abs(x), std::abs(y)}) &&
           std::isfinite(x - y);
  };
  if (near(a.value, b.value)) {
    return true;
  }
  if (a.percent == b.percent) {
    return false;
  }
  return near(a.percent ? a.value / 100 : a.value, b.percent ? b.value / 100 : b.value);
}

std::optional<std::string_view> last_number(std::string_view text) {
  static const RE2 number(
      R"((-?\\[dtc]?frac *\{[^{}]{0,40}\} *\{[^{}]{0,40}\}|)"
      R"([-+]?(?:(?:\d{1,3}(?:,\d{3})+\b|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+\b| *(?:\\times|\\cdot|\*|×) *10 *\^ *(?:\{[-+]?\d+\}|[-+]?\d+))?)"
      R"((?: +\d+)?(?: *\\[dtc]?frac\{\d+\}\{\d+\}| ?/ ?\d+\b)?(?: *\\?%)?))");
  text.remove_prefix(text.size() - std::min(text.size(), kTail));
  const re2::StringPiece whole = piece(text);
  std::array<re2::StringPiece, 1> match;
  std::optional<std::string_view> found;
  for (std::size_t begin = 0;
       number.Match(whole, begin, whole.size(), RE2::UNANCHORED, match.data(), 1);) {
    std::string_view hit = view(match[0]);
    const auto at = static_cast<std::size_t>(hit.data() - text.data());
    begin = at + hit.size();
    // In "7-5" the hyphen is no sign.
    if (at > 0 && (hit.front() == '-' || hit.front() == '+') &&
        std::isalnum(static_cast<unsigned char>(text[at - 1]))) {
      hit.remove_prefix(1);
    }
    found = hit;
  }
  return found;
}

}  // namespace ringside::rl
