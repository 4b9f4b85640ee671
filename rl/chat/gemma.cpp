#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"
#include "rl/chat/schema_values.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kOpen = "<|tool_call>";
constexpr std::string_view kClose = "<tool_call|>";
constexpr std::string_view kCall = "call:";
constexpr std::string_view kQuote = "<|\"|>";
constexpr std::string_view kSpace = " ,\n\t";
constexpr int kMaxDepth = 64;

using nlohmann::json;

const json& member(const json& schema, const char* name) {
  static const json none;
  return schema.is_object() && schema.contains(name) ? schema.at(name) : none;
}

// Reads {KEY:VALUE,...} and [VALUE,...], whose texts stand between <|"|> and have no escapes, and
// writes them as JSON. Values get the types of their schemas; without one they are strings.
// Brackets that are missing at the end of the text are taken to be there. Source:
// _parse_gemma4_args() and _coerce_dict() of vLLM 0.24.
class ValueReader {
 public:
  explicit ValueReader(std::string_view text) : text_(text) {}

  // Members up to the end of the text, or with `braced` to the closing brace. properties: their
  // schemas, or null. depth: 0 for those of the call.
  std::string members(const json& properties, bool braced, int depth) {
    std::vector<std::pair<std::string, std::string>> members;
    while (next(braced ? '}' : '\0')) {
      const std::size_t colon = std::min(text_.find(':', at_), text_.size());
      if (colon == text_.size()) {
        at_ = colon;
        break;
      }
      std::string_view key = python_strip(text_.substr(at_, colon - at_));
      if (key.size() >= 2 * kQuote.size() && key.starts_with(kQuote) && key.ends_with(kQuote)) {
        key = key.substr(kQuote.size(), key.size() - 2 * kQuote.size());
      }
      at_ = colon + 1;
      auto written = value(member(properties, std::string(key).c_str()), depth, /*in_list=*/false);
      if (!written) {
        break;
      }
      set(members, std::string(key), *std::move(written));
    }
    std::string out = "{";
    for (const auto& [key, written] : members) {
      out += (out.size() > 1 ? ", " : "") + json_quoted(key) + ": " + written;
    }
    return out + "}";
  }

 private:
  static void set(std::vector<std::pair<std::string, std::string>>& members, std::string key,
                  std::string written) {
    const auto known = std::find_if(members.begin(), members.end(),
                                    [&](const auto& one) { return one.first == key; });
    if (known == members.end()) {
      members.emplace_back(std::move(key), std::move(written));
    } else {
      known->second = std::move(written);
    }
  }

  // Goes to the next member or element. False at the end, behind `close`.
  bool next(char close) {
    at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size());
    if (at_ < text_.size() && text_[at_] == close && close != '\0') {
      ++at_;
      return false;
    }
    return at_ < text_.size();
  }

  // in_list: of a list and not of an object. nullopt, and the text is left, when there is no value,
  // or one inside of another that the end of the text may have cut.
  std::optional<std::string> value(const json& schema, int depth, bool in_list) {
    at_ = std::min(text_.find_first_not_of(" \n\t", at_), text_.size());
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(kQuote)) {
      at_ += kQuote.size();
      const std::size_t end = text_.find(kQuote, at_);
      std::string text(text_.substr(at_, end - at_));
      if (end == std::string_view::npos && depth > 0 && !in_list) {
        text.resize(text.size() - begun_marker_bytes(text, {kQuote}));
      }
      at_ = end == std::string_view::npos ? text_.size() : end + kQuote.size();
      return typed(text, schema);
    }
    if ((rest.starts_with('{') || rest.starts_with('[')) && depth < kMaxDepth) {
      ++at_;
      return rest.front() == '{' ? members(member(schema, "properties"), true, depth + 1)
                                 : elements(member(schema, "items"), depth + 1);
    }
    const std::size_t end =
        std::min(text_.find_first_of(in_list ? ",]" : ",}]", at_), text_.size());
    const bool cut = depth > 0 && end == text_.size();
    if (cut || (end == at_ && !rest.empty())) {
      at_ = text_.size();
      return std::nullopt;
    }
    const std::string text(python_strip(text_.substr(at_, end - at_)));
    at_ = end;
    return typed(text, schema);
  }

  std::string elements(const json& schema, int depth) {
    std::string out = "[";
    while (next(']')) {
      const auto written = value(schema, depth, /*in_list=*/true);
      if (!written) {
        break;
      }
      out += (out.size() > 1 ? ", " : "") + *written;
    }
    return out + "]";
  }

  static std::string typed(const std::string& text, const json& schema) {
    return schema.is_object() ? value_of_schema(text, schema) : json_quoted(text);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// call:NAME{...}; a call without its brace is none.
std::vector<ToolCall> read_call(const json& tools, std::string_view block) {
  const std::size_t call = block.find(kCall);
  const std::size_t brace = call == std::string_view::npos ? call : block.find('{', call);
  if (brace == std::string_view::npos) {
    return {};
  }
  const std::size_t begin = call + kCall.size();
  const std::string name(python_strip(block.substr(begin, brace - begin)));
  std::string_view arguments = python_strip(block.substr(brace + 1));
  if (arguments.ends_with('}')) {
    arguments.remove_suffix(1);
  }
  if (name.empty()) {
    return {};
  }
  return {{name, ValueReader(arguments).members(tool_properties(tools, name), false, 0)}};
}

}  // namespace

std::unique_ptr<MessageParser> gemma4_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kGemmaReasoning, options, [tools = options.tools] {
    return std::make_unique<BlockReader>(
        kOpen, kClose,
        [tools](std::string_view block, bool /*closed*/) { return read_call(tools, block); });
  });
}

}  // namespace ringside::rl
