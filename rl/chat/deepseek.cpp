#include <string_view>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kCalls = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCall = "<｜tool▁call▁begin｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kBlock = "\n```json\n";
constexpr std::string_view kBlockEnd = "\n```";

// The text before a separator, which is removed with it; nullopt when there is none.
std::optional<std::string_view> take_before(std::string_view separator, std::string_view& text) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + separator.size());
  return before;
}

// The texts between the markers of a call, without those whose end is missing.
std::vector<std::string_view> call_texts(std::string_view text) {
  std::vector<std::string_view> calls;
  while (take_before(kCall, text)) {
    const std::size_t end = text.find(kCallEnd);
    if (end < text.find(kCall)) {
      calls.push_back(text.substr(0, end));
    }
  }
  return calls;
}

// TYPE<sep>NAME LF ```json LF ARGUMENTS LF ```.
std::optional<std::vector<ToolCall>> read_v3(std::string_view text) {
  std::vector<ToolCall> calls;
  for (std::string_view call : call_texts(text)) {
    const auto type = take_before(kSeparator, call);
    const auto name = type ? take_before(kBlock, call) : std::nullopt;
    if (!name || !call.ends_with(kBlockEnd) || name->find('\n') != std::string_view::npos) {
      continue;
    }
    if (*type != "function") {
      return std::nullopt;
    }
    call.remove_suffix(kBlockEnd.size());
    calls.push_back({std::string(*name), std::string(call)});
  }
  return calls;
}

// NAME<sep>ARGUMENTS.
std::optional<std::vector<ToolCall>> read_v31(std::string_view text) {
  std::vector<ToolCall> calls;
  for (std::string_view call : call_texts(text)) {
    const auto name = take_before(kSeparator, call);
    if (name && name->find('\n') == std::string_view::npos) {
      calls.push_back({std::string(*name), std::string(call)});
    }
  }
  return calls;
}

std::unique_ptr<MessageParser> parser(const ParserOptions& options, TailReader::ReadTail read) {
  return std::make_unique<StagedParser>(
      kDeepSeekReasoning, options, [read] { return std::make_unique<TailReader>(kCalls, read); });
}

}  // namespace

std::unique_ptr<MessageParser> deepseek_v3_parser(const ParserOptions& options) {
  return parser(options, read_v3);
}

std::unique_ptr<MessageParser> deepseek_v31_parser(const ParserOptions& options) {
  return parser(options, read_v31);
}

}  // namespace ringside::rl
