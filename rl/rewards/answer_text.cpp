#include "rl/rewards/answer_text.h"

#include <algorithm>

namespace ringside::rl {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";

// The bytes up to the brace that closes the one at text[0]; nothing when it is never closed.
std::optional<std::string_view> inside_braces(std::string_view text) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;  // an escaped brace is part of the content
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return text.substr(1, i - 1);
    }
  }
  return std::nullopt;
}

bool is_one_of(std::string_view word, std::string_view words) {
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find('|', begin), words.size());
    if (words.substr(begin, end - begin) == word) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::string_view strip(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string_view without_stop(std::string_view completion, StopTexts stops) {
  completion = strip(completion);
  std::size_t longest = 0;
  for (const std::string& text : stops) {
    const std::string_view stop = strip(text);
    longest = completion.ends_with(stop) ? std::max(longest, stop.size()) : longest;
  }
  completion.remove_suffix(longest);
  return strip(completion);
}

std::optional<std::string_view> final_answer(std::string_view completion,
                                             std::string_view separator, StopTexts stops) {
  if (!separator.empty()) {
    const std::size_t at = completion.rfind(separator);
    if (at == std::string_view::npos) {
      return std::nullopt;
    }
    completion.remove_prefix(at + separator.size());
  }
  std::size_t end = completion.size();
  for (const std::string& stop : stops) {
    end = stop.empty() ? end : std::min(end, completion.find(stop));
  }
  return strip(completion.substr(0, end));
}

Box last_box(std::string_view text) {
  std::size_t at = text.rfind("\\boxed");
  const std::size_t frame = text.rfind("\\fbox");
  if (at == std::string_view::npos || (frame != std::string_view::npos && frame > at)) {
    at = frame;
  }
  if (at == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(at + (text[at + 1] == 'b' ? 6 : 5));
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {BoxState::kUnclosed, {}};
  }
  text.remove_prefix(begin);
  if (text.front() != '{') {
    return {BoxState::kClosed, text.substr(0, text.find_first_of(" \t\n\r\v\f$"))};
  }
  const auto content = inside_braces(text);
  return content ? Box{BoxState::kClosed, strip(*content)} : Box{BoxState::kUnclosed, {}};
}

std::optional<std::string_view> last_block(std::string_view text, std::string_view languages) {
  std::optional<std::string_view> found;
  bool open = false;
  bool wanted = false;
  std::size_t content = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = strip(text.substr(begin, end - begin));
    if (line.starts_with("```")) {
      if (!open) {
        open = true;
        wanted = is_one_of(strip(line.substr(3)), languages);
        content = std::min(end + 1, text.size());
      } else if (line == "```") {
        open = false;
        if (wanted) {
          found = text.substr(content, begin - content);
        }
      }
    }
    begin = end + 1;
  }
  if (open && wanted) {
    found = text.substr(content);
  }
  return found;
}

}  // namespace ringside::rl
