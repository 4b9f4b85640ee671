#include <string_view>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";

std::optional<std::vector<ToolCall>> read_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (std::size_t at = text.find(kOpen); at != std::string_view::npos;) {
    const std::size_t from = at + kOpen.size();
    const std::size_t close = text.find(kClose, from);
    // The last call may lack its end.
    const auto call = read_json_text(text.substr(from, close - from));
    const std::string* name = call ? call->find_string("name") : nullptr;
    const JsonValue* arguments = call ? call->find("arguments") : nullptr;
    if (name == nullptr || arguments == nullptr) {
      return std::nullopt;
    }
    calls.push_back({*name, to_text(*arguments)});
    at = close == std::string_view::npos ? close : text.find(kOpen, close + kClose.size());
  }
  return calls;
}

}  // namespace

std::unique_ptr<MessageParser> plain_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kDeepSeekReasoning, options,
                                        [] { return std::make_unique<NoCalls>(); });
}

std::unique_ptr<MessageParser> hermes_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(
      kQwenReasoning, options, [] { return std::make_unique<TailReader>(kOpen, read_calls); });
}

}  // namespace ringside::rl
