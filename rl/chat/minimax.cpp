#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/markers.h"
#include "rl/chat/schema_values.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kOpen = "<minimax:tool_call>";
constexpr std::string_view kClose = "</minimax:tool_call>";
constexpr std::string_view kInvoke = "<invoke name=";
constexpr std::string_view kInvokeEnd = "</invoke>";

using Values = std::vector<std::pair<std::string, std::string>>;

// Removes a text from the front, and white space around it. False when it is not there.
bool take(std::string_view& text, std::string_view expected, bool space_first = true) {
  std::string_view rest = text;
  if (space_first) {
    rest.remove_prefix(space_bytes_at_front(rest));
  }
  if (!rest.starts_with(expected)) {
    return false;
  }
  text = rest.substr(expected.size());
  return true;
}

// A name at the front, in quotes of either kind or without. nullopt when its end is missing.
std::optional<std::string> take_name(std::string_view& text) {
  text.remove_prefix(space_bytes_at_front(text));
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  const std::size_t end = quoted ? text.find(text.front(), 1) : text.find_first_of(" \t\n\r\f\v>");
  if (end == std::string_view::npos || (!quoted && end == 0)) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(quoted ? 1 : 0, quoted ? end - 1 : end);
  text.remove_prefix(end + (quoted ? 1 : 0));
  return std::string(python_strip(name));
}

// <parameter name="NAME">VALUE</parameter> at the front, which it removes; nullopt when it is
// something else. One without an end takes the whole text, because no later one ends either.
std::optional<std::pair<std::string, std::string>> take_parameter(std::string_view& text) {
  std::string_view rest = text;
  if (!take(rest, "<", false) || !take(rest, "parameter") || space_bytes_at_front(rest) == 0 ||
      !take(rest, "name") || !take(rest, "=")) {
    return std::nullopt;
  }
  auto name = take_name(rest);
  if (!name || !take(rest, ">")) {
    return std::nullopt;
  }
  for (std::size_t at = rest.find('<'); at != std::string_view::npos; at = rest.find('<', at + 1)) {
    std::string_view tag = rest.substr(at + 1);
    if (take(tag, "/") && take(tag, "parameter") && take(tag, ">")) {
      const std::string value(python_strip(rest.substr(0, at)));
      text = tag;
      return std::pair(*std::move(name), value);
    }
  }
  text = {};
  return std::nullopt;
}

// The parameters that are complete.
Values read_values(std::string_view text) {
  Values values;
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find('<'), text.size()));
    if (auto parameter = take_parameter(text)) {
      if (!parameter->first.empty()) {
        values.push_back(*std::move(parameter));
      }
    } else {
      text.remove_prefix(text.empty() ? 0 : 1);
    }
  }
  return values;
}

// The name of a call behind its marker, which it removes with its end; "" when it is not whole.
// It ends at ">, '> or >.
std::string take_call_name(std::string_view& text) {
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  text.remove_prefix(quoted ? 1 : 0);
  const std::size_t end = text.find('>');
  if (end == std::string_view::npos) {
    return "";
  }
  std::string_view name = text.substr(0, end);
  if (name.ends_with('"') || name.ends_with('\'')) {
    name.remove_suffix(1);
  }
  text.remove_prefix(end + 1);
  return std::string(python_strip(name));
}

// <invoke name="NAME">PARAMETERS</invoke>, several; of one whose end is missing those parameters
// that are complete.
std::vector<ToolCall> read_calls(const nlohmann::json& tools, std::string_view block) {
  std::vector<ToolCall> calls;
  for (std::size_t at = block.find(kInvoke); at != std::string_view::npos;
       at = block.find(kInvoke)) {
    block.remove_prefix(at + kInvoke.size());
    const std::string name = take_call_name(block);
    const std::size_t end = std::min(block.find(kInvokeEnd), block.size());
    if (!name.empty()) {
      calls.push_back(
          {name, typed_arguments(read_values(block.substr(0, end)), tool_properties(tools, name))});
    }
    block.remove_prefix(end);
  }
  return calls;
}

// A block does not end inside a call. Looks at each byte of a growing block once.
class OutsideOfCalls {
 public:
  bool operator()(std::string_view block) {
    for (std::size_t at = find(block); at != std::string_view::npos; at = find(block)) {
      seen_ = at + 1;
      in_call_ = !in_call_;
    }
    seen_ = in_call_ ? block.size() : 0;  // a block that is whole has ended
    return !in_call_;
  }

 private:
  std::size_t find(std::string_view block) const {
    return block.find(in_call_ ? kInvokeEnd : kInvoke, seen_);
  }

  std::size_t seen_ = 0;
  bool in_call_ = false;
};

}  // namespace

std::unique_ptr<MessageParser> minimax_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kMinimaxReasoning, options, [tools = options.tools] {
    return std::make_unique<BlockReader>(
        kOpen, kClose,
        [tools](std::string_view block, bool /*closed*/) { return read_calls(tools, block); },
        OutsideOfCalls());
  });
}

}  // namespace ringside::rl
