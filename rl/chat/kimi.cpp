#include <algorithm>
#include <string_view>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/markers.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kCalls = "<|tool_calls_section_begin|>";
constexpr std::string_view kCall = "<|tool_call_begin|>";
constexpr std::string_view kArguments = "<|tool_call_argument_begin|>";
constexpr std::string_view kCallEnd = "<|tool_call_end|>";

// functions.NAME:NUMBER, which is the call's id; "" for another text.
std::string name_of(std::string_view id) {
  const std::size_t number = id.rfind(':');
  if (number == std::string_view::npos || number == 0 || number + 1 == id.size() ||
      id.find('<') != std::string_view::npos ||
      id.find_first_not_of("0123456789", number + 1) != std::string_view::npos) {
    return "";
  }
  const std::string_view path = id.substr(0, id.find(':'));
  return std::string(path.substr(path.rfind('.') + 1));
}

// ID<arguments>ARGUMENTS between the markers of a call. One whose end is missing is dropped.
std::vector<ToolCall> read_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (std::size_t at = text.find(kCall); at != std::string_view::npos;) {
    const std::size_t begin = at + kCall.size();
    at = text.find(kCall, begin);
    const std::string_view call = text.substr(begin, std::min(at, text.size()) - begin);
    const std::size_t arguments = call.find(kArguments);
    const std::size_t end = call.find(kCallEnd);
    if (arguments == std::string_view::npos || end == std::string_view::npos || end < arguments) {
      continue;
    }
    const std::string_view id = python_strip(call.substr(0, arguments));
    const std::string name = name_of(id);
    if (!name.empty()) {
      const std::size_t value = arguments + kArguments.size();
      calls.push_back(
          {name, std::string(python_strip(call.substr(value, end - value))), std::string(id)});
    }
  }
  return calls;
}

}  // namespace

std::unique_ptr<MessageParser> kimi_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(
      kKimiReasoning, options, [] { return std::make_unique<TailReader>(kCalls, read_calls); });
}

}  // namespace ringside::rl
