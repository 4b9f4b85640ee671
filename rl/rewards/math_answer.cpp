#include "rl/rewards/math_answer.h"

#include <re2/re2.h>

#include <algorithm>
#include <vector>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/math_number.h"

namespace ringside::rl {
namespace {

// Longer answers score 0.
constexpr std::size_t kLongestAnswer = 16 << 10;
constexpr std::size_t kMostUnordered = 64;

// The text without a name on its left: "x = 5", "f(x)=5", "x \in [0,1]".
std::string_view without_name(std::string_view text) {
  static const RE2 form(
      R"((?:[A-Za-z]|\\[a-z]{2,8})(?:_\{?\w{1,4}\}?)?'?(?: ?\([A-Za-z, ]{1,8}\))? ?(?:=|\\in\b) ?([^=]*))");
  re2::StringPiece right;
  if (RE2::FullMatch(re2::StringPiece(text.data(), text.size()), form, &right)) {
    return {right.data(), right.size()};
  }
  return text;
}

struct Collection {
  std::string open, close;  // "" for a bare list
  std::vector<std::string_view> elements;
  bool ordered() const { return open == "(" || open == "["; }
};

// Splits at commas (and semicolons) outside brackets. An unbalanced text is not split.
std::vector<std::string_view> cut(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
    depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
    if (depth == 0 && (c == ',' || c == ';')) {
      parts.push_back(strip(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (depth != 0) {
    return {text};
  }
  parts.push_back(strip(text.substr(begin)));
  return parts;
}

// A bracketed or bare list of two elements or more; one element without brackets otherwise.
Collection as_collection(std::string_view text) {
  for (const auto& [open, close] : {std::pair<std::string_view, std::string_view>{"\\{", "\\}"},
                                    {"(", ")"},
                                    {"(", "]"},
                                    {"[", ")"},
                                    {"[", "]"}}) {
    if (text.size() > open.size() + close.size() && text.starts_with(open) &&
        text.ends_with(close)) {
      auto elements = cut(text.substr(open.size(), text.size() - open.size() - close.size()));
      if (elements.size() > 1 || open == "\\{") {
        return {std::string(open), std::string(close), std::move(elements)};
      }
    }
  }
  if (parse_math_number(text)) {  // 1,234
    return {"", "", {text}};
  }
  return {"", "", cut(text)};
}

bool is_words(std::string_view text) {
  return text.size() > 1 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '\'';
         });
}

bool same_text(std::string_view a, std::string_view b) {
  const std::string x = plain_math(a, false);
  const std::string y = plain_math(b, false);
  if (x.empty() || x == y || !is_words(x) || !is_words(y)) {
    return !x.empty() && x == y;
  }
  return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                    [](char p, char q) { return (p | 0x20) == (q | 0x20); });
}

bool same_element(std::string_view a, std::string_view b, double tolerance) {
  a = without_name(a);
  b = without_name(b);
  const auto x = parse_math_number(a);
  const auto y = parse_math_number(b);
  if (x && y) {
    return same_number(*x, *y, tolerance);
  }
  return same_text(a, b);
}

// Whether each of a's elements can be matched with a different one of b's.
bool same_set(const Collection& a, const Collection& b, double tolerance) {
  if (a.elements.size() > kMostUnordered) {
    return false;
  }
  std::vector<bool> taken(b.elements.size());
  return std::all_of(a.elements.begin(), a.elements.end(), [&](std::string_view element) {
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (!taken[i] && same_element(element, b.elements[i], tolerance)) {
        taken[i] = true;
        return true;
      }
    }
    return false;
  });
}

// The data set's answer, which may be boxed, follow the separator, or end as GSM8K's do.
std::string_view right_answer(std::string_view answer, std::string_view separator) {
  const Box box = last_box(answer);
  if (box.state == BoxState::kClosed) {
    return box.content;
  }
  if (!separator.empty()) {
    if (const auto found = final_answer(answer, separator, {})) {
      return *found;
    }
  }
  return gsm8k_answer(answer).value_or(strip(answer));
}

}  // namespace

std::optional<std::string_view> gsm8k_answer(std::string_view answer) {
  constexpr std::string_view kMark = "#### ";
  const std::string_view text = strip(answer);
  const std::size_t line_end = text.rfind('\n');
  const std::string_view last =
      line_end == std::string_view::npos ? text : text.substr(line_end + 1);
  if (!last.starts_with(kMark)) {
    return std::nullopt;
  }
  return strip(last.substr(kMark.size()));
}

std::string_view math_answer_of(std::string_view completion, std::string_view separator,
                                StopTexts stops) {
  const Box box = last_box(completion);
  if (box.state != BoxState::kNone) {
    return box.content;
  }
  if (!separator.empty()) {
    if (const auto answer = final_answer(completion, separator, stops)) {
      return *answer;
    }
  }
  return last_number(without_stop(completion, stops)).value_or(std::string_view{});
}

bool same_math(std::string_view a, std::string_view b, double tolerance) {
  if (a.size() > kLongestAnswer || b.size() > kLongestAnswer) {
    return false;
  }
  const std::string x = plain_math(a, true);
  const std::string y = plain_math(b, true);
  if (same_text(x, y)) {
    return true;
  }
  const Collection p = as_collection(strip(without_name(strip(x))));
  const Collection q = as_collection(strip(without_name(strip(y))));
  const bool same_brackets = p.open == q.open && p.close == q.close;
  // A bare list and a set in braces are equivalent.
  if (p.elements.size() != q.elements.size() || (!same_brackets && (p.ordered() || q.ordered()))) {
    return false;
  }
  if (!p.ordered()) {
    return same_set(p, q, tolerance);
  }
  return std::equal(p.elements.begin(), p.elements.end(), q.elements.begin(),
                    [&](auto m, auto n) { return same_element(m, n, tolerance); });
}

std::string math_answer_problem(std::string_view answer, const RewardOptions& options) {
  const std::string_view right = right_answer(answer, options.separator);
  if (right.size() > kLongestAnswer) {
    return "has " + std::to_string(right.size()) + " bytes, expected at most " +
           std::to_string(kLongestAnswer);
  }
  return plain_math(right, false).empty()
             ? "is missing or blank; there is no answer to compare with"
             : "";
}

Reward math_answer_reward(const RewardOptions& options) {
  if (!(options.tolerance >= 0)) {
    throw std::invalid_argument("math_answer: tolerance " + std::to_string(options.tolerance) +
                                "; expected at least 0");
  }
  return [separator = options.separator, stops = options.stops,
          tolerance = options.tolerance](const RewardInput& input) {
    const std::string_view right = right_answer(input.answer, separator);
    return same_math(math_answer_of(input.completion, separator, stops), right, tolerance) ? 1.0
                                                                                           : 0.0;
  };
}

}  // namespace ringside::rl
