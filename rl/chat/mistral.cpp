#include <string_view>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kCalls = "[TOOL_CALLS]";
constexpr std::string_view kId = "[CALL_ID]";
constexpr std::string_view kArguments = "[ARGS]";

std::optional<std::vector<ToolCall>> calls_of(const JsonValue& list) {
  if (list.kind != JsonValue::Kind::kArray) {
    return std::nullopt;
  }
  std::vector<ToolCall> calls;
  for (const JsonValue& item : list.items) {
    const std::string* name = item.find_string("name");
    if (name == nullptr) {
      return std::nullopt;
    }
    const JsonValue* arguments = item.find("arguments");
    calls.push_back({*name, arguments != nullptr ? to_text(*arguments) : "{}"});
  }
  return calls;
}

// A list of calls; what follows it is ignored.
std::optional<std::vector<ToolCall>> read_list(std::string_view text) {
  if (const auto list = read_json_prefix(text)) {
    return calls_of(list->value);
  }
  // A list inside the text.
  const std::size_t begin = text.find("[{");
  const std::size_t end = text.rfind("}]");
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) {
    return std::nullopt;
  }
  const auto list = read_json_text(text.substr(begin, end + 2 - begin));
  return list ? calls_of(*list) : std::nullopt;
}

// NAME[ARGS]{...}, or with an id: NAME[CALL_ID]ID[ARGS]{...}. nullopt when it has no arguments.
std::optional<ToolCall> read_named(std::string_view text) {
  const std::size_t arguments = text.find('{');
  if (arguments == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view name = text.substr(0, arguments);
  name = name.substr(0, std::min(name.find(kArguments), name.find(kId)));
  return ToolCall{std::string(name), std::string(text.substr(arguments))};
}

std::optional<std::vector<ToolCall>> read_calls(std::string_view text) {
  const std::string_view first = python_strip(text.substr(kCalls.size()));
  if (first.starts_with('[') && !first.starts_with(kArguments)) {
    return first.find(kCalls) == std::string_view::npos ? read_list(first) : std::nullopt;
  }
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    text.remove_prefix(kCalls.size());
    const std::size_t end = std::min(text.find(kCalls), text.size());
    if (auto call = read_named(text.substr(0, end))) {
      if (python_strip(call->name).empty()) {
        return std::nullopt;
      }
      calls.push_back(*std::move(call));
    }
    text.remove_prefix(end);
  }
  return calls;
}

}  // namespace

std::unique_ptr<MessageParser> mistral_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(
      kMistralReasoning, options, [] { return std::make_unique<TailReader>(kCalls, read_calls); });
}

}  // namespace ringside::rl
