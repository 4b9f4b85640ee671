#include <string_view>
#include <utility>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";
constexpr std::string_view kBrace = "{";

std::optional<ToolCall> call_of(const JsonValue& object) {
  const std::string* name = object.find_string("name");
  const JsonValue* arguments = object.find("arguments");
  if (arguments == nullptr) {
    arguments = object.find("parameters");
  }
  if (name == nullptr || arguments == nullptr) {
    return std::nullopt;
  }
  return ToolCall{*name, to_text(*arguments)};
}

// The calls of a text; nullopt when it has none or one of its objects is no call.
std::optional<std::vector<ToolCall>> read_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  std::size_t at = text.find('{');
  while (at != std::string_view::npos) {
    const auto object = read_json_prefix(text.substr(at));
    auto call = object ? call_of(object->value) : std::nullopt;
    if (!call) {
      return std::nullopt;
    }
    calls.push_back(*std::move(call));
    at = text.find('{', at + object->bytes);
  }
  return calls.empty() ? std::nullopt : std::optional(std::move(calls));
}

// The first object of a text, to see when it is complete without reading it again and again.
class FirstObject {
 public:
  enum class State { kOpen, kComplete, kNoCall };

  // Reads on in the text, which grows and begins at the object's brace.
  State read(std::string_view text) {
    for (; at_ < text.size() && state_ == State::kOpen; ++at_) {
      take(text[at_]);
    }
    return state_;
  }

  std::size_t bytes() const { return at_; }

 private:
  void take(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return;
    }
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (at_ > 0 && !begun_ && !space) {  // a call has a member, so a name follows the brace
      begun_ = true;
      state_ = c == '"' ? State::kOpen : State::kNoCall;
    }
    in_string_ = c == '"';
    depth_ += c == '{' || c == '[' ? 1 : 0;
    depth_ -= c == '}' || c == ']' ? 1 : 0;
    if (depth_ == 0 && state_ == State::kOpen) {
      state_ = State::kComplete;
    }
  }

  State state_ = State::kOpen;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Content up to a tag or a brace. From there on, calls or content: content as soon as the first
// object is known to be no call, so that an answer with braces still streams.
class LlamaReader : public CallReader {
 public:
  ParsedMessage read(std::string_view piece) override {
    text_ += piece;
    ParsedMessage out;
    if (state_ == State::kBefore) {
      const MarkerPlace place = first_marker(text_, {kTag, kBrace});
      const std::size_t content =
          std::min(place.at, text_.size() - begun_marker_bytes(text_, {kTag}));
      out.content = text_.substr(0, content);
      text_.erase(0, content);
      state_ = place.marker.empty() ? State::kBefore : State::kFirst;
    }
    if (state_ == State::kFirst && first_is_no_call()) {
      state_ = State::kContent;
    }
    if (state_ == State::kContent) {
      out.content += std::exchange(text_, {});
    }
    return out;
  }

  ParsedMessage end() override {
    ParsedMessage out;
    auto calls = state_ == State::kBefore ? std::nullopt : read_calls(text_);
    if (calls) {
      has_calls_ = true;
      out.tool_calls = *std::move(calls);
    } else {
      out.content = std::move(text_);
    }
    return out;
  }

  bool has_calls() const override { return has_calls_; }

 private:
  enum class State { kBefore, kFirst, kCalls, kContent };

  // kCalls once the first object is a call.
  bool first_is_no_call() {
    if (brace_ == std::string::npos) {
      brace_ = text_.find('{');
    }
    if (brace_ == std::string::npos) {
      return false;
    }
    const std::string_view from_brace = std::string_view(text_).substr(brace_);
    const FirstObject::State state = first_.read(from_brace);
    if (state != FirstObject::State::kComplete) {
      return state == FirstObject::State::kNoCall;
    }
    const auto object = read_json_prefix(from_brace.substr(0, first_.bytes()));
    if (!object || !call_of(object->value)) {
      return true;
    }
    state_ = State::kCalls;
    return false;
  }

  State state_ = State::kBefore;
  std::string text_;  // what is not yet certain
  std::size_t brace_ = std::string::npos;
  FirstObject first_;
  bool has_calls_ = false;
};

}  // namespace

std::unique_ptr<MessageParser> llama3_json_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kDeepSeekReasoning, options,
                                        [] { return std::make_unique<LlamaReader>(); });
}

}  // namespace ringside::rl
