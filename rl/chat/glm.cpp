#include <string_view>
#include <utility>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/markers.h"
#include "rl/chat/schema_values.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kKey = "<arg_key>";
constexpr std::string_view kKeyEnd = "</arg_key>";
constexpr std::string_view kValue = "<arg_value>";
constexpr std::string_view kValueEnd = "</arg_value>";

// Where a key ends whose value follows: its end tag, white space, and the value's tag. npos when
// there is none. `value` gets the place of the value.
std::size_t key_end(std::string_view text, std::size_t from, std::size_t& value) {
  std::size_t end = text.find(kKeyEnd, from);
  for (; end != std::string_view::npos; end = text.find(kKeyEnd, end + kKeyEnd.size())) {
    value = end + kKeyEnd.size();
    value += space_bytes_at_front(text.substr(value));
    if (text.substr(value).starts_with(kValue)) {
      value += kValue.size();
      return end;
    }
  }
  return end;
}

// The arguments whose values are complete.
std::vector<std::pair<std::string, std::string>> read_values(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> values;
  std::size_t key = text.find(kKey);
  while (key != std::string_view::npos) {
    const std::size_t name = key + kKey.size();
    std::size_t value = 0;
    const std::size_t name_end = key_end(text, name, value);
    const std::size_t end = name_end == std::string_view::npos ? name_end  //
                                                               : text.find(kValueEnd, value);
    if (end == std::string_view::npos) {
      break;  // nor is there a later one that ends
    }
    values.emplace_back(python_strip(text.substr(name, name_end - name)),
                        text.substr(value, end - value));
    key = text.find(kKey, end + kValueEnd.size());
  }
  return values;
}

// NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...; a name is whole when something follows
// it.
std::vector<ToolCall> read_call(const nlohmann::json& tools, std::string_view block, bool closed) {
  const std::size_t arguments = std::min(block.find(kKey), block.size());
  const std::string name(python_strip(block.substr(0, arguments)));
  if (name.empty() || (arguments == block.size() && !closed)) {
    return {};
  }
  return {
      {name, typed_arguments(read_values(block.substr(arguments)), tool_properties(tools, name))}};
}

}  // namespace

std::unique_ptr<MessageParser> glm_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kGlmReasoning, options, [tools = options.tools] {
    return std::make_unique<BlockReader>(
        kOpen, kClose,
        [tools](std::string_view block, bool closed) { return read_call(tools, block, closed); });
  });
}

}  // namespace ringside::rl
