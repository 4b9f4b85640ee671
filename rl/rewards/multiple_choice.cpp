#include "rl/rewards/multiple_choice.h"

#include <re2/re2.h>

#include <array>

#include "rl/rewards/answer_text.h"

namespace ringside::rl {
namespace {

// Only this many bytes at the end are searched: a choice is named at the end.
constexpr std::size_t kSearchedTail = 64 << 10;

char upper(char letter) { return static_cast<char>(letter >= 'a' ? letter - 'a' + 'A' : letter); }

// Whole text: one letter, as it may be written alone. Lower case counts here, but not in sentences,
// where "a" is a word.
const RE2& alone() {
  static const RE2 pattern(
      R"(\s*[*_$]*\(?\s*(?:\\text(?:bf)?\s*\{\s*)?\(?([A-Za-z])\)?\s*\}?\s*\)?[.:]?[*_$]*[.]?\s*)");
  return pattern;
}

const std::array<const RE2*, 3>& patterns() {
  static const RE2 in_parentheses(R"(\(\s*[*_]*([A-Za-z])[*_]*\s*\))");
  static const RE2 at_line_start(
      R"((?m)^[ \t]*[*_]*([A-Z])(?:[*_]*[.):][*_]*(?:\s|$)|[*_]*[ \t\r]*$))");
  static const RE2 in_sentence(
      R"((?i:\banswer|\bchoice|\boption)(?i:\s+is|\s+would\s+be)?[*_]*\s*[:=]?[\s*_]*(?i:(?:choice|option)\s+)?[("'$]*([A-Z])(?:[^A-Za-z0-9']|$))");
  static const std::array<const RE2*, 3> all = {&in_parentheses, &at_line_start, &in_sentence};
  return all;
}

// The last match's letter and its position.
std::optional<char> last_letter(std::string_view text) {
  std::optional<char> found;
  const char* at = nullptr;
  const re2::StringPiece whole(text.data(), text.size());
  for (const RE2* pattern : patterns()) {
    std::array<re2::StringPiece, 2> groups;
    std::size_t begin = 0;
    while (pattern->Match(whole, begin, whole.size(), RE2::UNANCHORED, groups.data(), 2)) {
      if (at == nullptr || groups[1].data() > at) {
        at = groups[1].data();
        found = upper(*at);
      }
      begin = static_cast<std::size_t>(groups[1].data() - whole.data()) + 1;
    }
  }
  return found;
}

std::optional<char> read_letter(std::string_view text) {
  re2::StringPiece letter;
  if (RE2::FullMatch(re2::StringPiece(text.data(), text.size()), alone(), &letter)) {
    return upper(letter[0]);
  }
  return last_letter(text);
}

}  // namespace

std::optional<char> chosen_letter(std::string_view text, std::string_view separator) {
  text.remove_prefix(text.size() - std::min(text.size(), kSearchedTail));
  const Box box = last_box(text);
  if (box.state == BoxState::kUnclosed) {
    return std::nullopt;
  }
  if (box.state == BoxState::kClosed) {
    return read_letter(box.content);
  }
  if (!separator.empty()) {
    if (const auto answer = final_answer(text, separator, {})) {
      return read_letter(*answer);
    }
  }
  return read_letter(text);
}

std::string multiple_choice_answer_problem(std::string_view answer, const RewardOptions& options) {
  return chosen_letter(answer, options.separator)
             ? ""
             : "names no letter; expected one like \"B\" or \"(B) Paris\"";
}

Reward multiple_choice_reward(const RewardOptions& options) {
  return [separator = options.separator, stops = options.stops](const RewardInput& input) {
    const auto right = chosen_letter(input.answer, separator);
    const auto chosen = chosen_letter(without_stop(input.completion, stops), separator);
    return right && chosen == right ? 1.0 : 0.0;
  };
}

}  // namespace ringside::rl
