#include <array>
#include <string_view>
#include <utility>

#include "rl/chat/call_reader.h"
#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"
#include "rl/chat/schema_values.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kNameEnd = ">";

constexpr std::string_view kAsciiSpace = " \t\n\r\f\v";

// Reads the parts in order at the front of a text, white space before each; 0 when they are not
// there, otherwise their bytes.
template <std::size_t N>
std::size_t tag_bytes(std::string_view text, const std::array<std::string_view, N>& parts) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < N; ++i) {
    at = i == 0 ? 0 : std::min(text.find_first_not_of(kAsciiSpace, at), text.size());
    if (!text.substr(at).starts_with(parts[i])) {
      return 0;
    }
    at += parts[i].size();
  }
  return at;
}

std::size_t parameter_tag(std::string_view text) {
  return tag_bytes<3>(text, {"<", "parameter", "="});
}

std::size_t parameter_end_tag(std::string_view text) {
  return tag_bytes<4>(text, {"<", "/", "parameter", ">"});
}

// Where the value at the front of the text ends: at its end tag or the next parameter; npos when
// there is neither. `tag` gets the bytes of the end tag.
std::size_t value_end(std::string_view text, std::size_t& tag) {
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    tag = parameter_end_tag(text.substr(at));
    if (tag > 0 || parameter_tag(text.substr(at)) > 0) {
      return at;
    }
  }
  return std::string_view::npos;
}

// The parameters of a call whose values are complete, as JSON text.
std::string read_arguments(std::string_view text, const nlohmann::json& properties) {
  std::vector<std::pair<std::string, std::string>> values;
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at)) {
    const std::size_t tag = parameter_tag(text.substr(at));
    if (tag == 0) {
      ++at;
      continue;
    }
    const std::size_t name_end = text.find('>', at + tag);
    std::size_t end_tag = 0;
    const std::size_t end = name_end == std::string_view::npos
                                ? name_end
                                : value_end(text.substr(name_end + 1), end_tag);
    if (end == std::string_view::npos) {
      break;  // nor is there a later one that ends
    }
    std::string_view name = text.substr(at + tag, name_end - at - tag);
    name.remove_prefix(std::min(name.find_first_not_of(kAsciiSpace), name.size()));
    values.emplace_back(name, python_strip(text.substr(name_end + 1, end)));
    at = name_end + 1 + end + end_tag;
  }
  return typed_arguments(values, properties);
}

// Each call is certain as soon as it ends. Text after the first marker is held until then: it is
// dropped when there is a call, and content when there is none.
class Qwen3CoderReader : public CallReader {
 public:
  explicit Qwen3CoderReader(nlohmann::json tools) : tools_(std::move(tools)) {}

  ParsedMessage read(std::string_view piece) override {
    text_ += piece;
    ParsedMessage out;
    while (step(out)) {
    }
    return out;
  }

  ParsedMessage end() override {
    ParsedMessage out;
    take_text(std::exchange(text_, {}), out);
    if (state_ == State::kName || state_ == State::kArguments) {
      end_call(out);
    }
    out.content += std::exchange(held_, {});
    return out;
  }

  bool has_calls() const override { return called_; }

 private:
  enum class State { kContent, kCall, kName, kArguments, kAfterFunction };

  // Reads up to the next marker of the state, or to the end of the text; false for the latter.
  bool step(ParsedMessage& out) {
    switch (state_) {
      case State::kContent:
        return step_to(out, {kCall, kFunction});
      case State::kCall:
        return step_to(out, {kCallEnd, kFunction});
      case State::kName:  // the others are part of a name, with their own ">"
        return step_to(
            out, {kNameEnd, kFunctionEnd, kCall, kCallEnd, "<think>", "</think>", "</parameter>"});
      case State::kArguments:
        return step_to(out, {kFunctionEnd});
      case State::kAfterFunction:
        return step_to(out, {kCallEnd, kCall, kFunction});
    }
    return false;
  }

  bool step_to(ParsedMessage& out, std::initializer_list<std::string_view> markers) {
    const MarkerPlace place = first_marker(text_, markers);
    const std::size_t bytes = std::min(place.at, text_.size() - begun_marker_bytes(text_, markers));
    take_text(std::string_view(text_).substr(0, bytes), out);
    text_.erase(0, bytes + place.marker.size());
    if (!place.marker.empty()) {
      take_marker(place.marker, out);
    }
    return !place.marker.empty();
  }

  void take_text(std::string_view text, ParsedMessage& out) {
    if (state_ == State::kName) {
      name_ += text;
    } else if (state_ == State::kArguments) {
      arguments_ += text;
    }
    if (called_) {
      return;
    }
    // White space before a call is dropped.
    const std::size_t content =
        marked_ || state_ != State::kContent ? 0 : text.size() - space_bytes_at_end(text);
    if (content > 0) {
      out.content += std::exchange(held_, {});
      out.content += text.substr(0, content);
    }
    held_ += text.substr(content);
  }

  void take_marker(std::string_view marker, ParsedMessage& out) {
    marked_ = true;
    held_ += called_ ? "" : marker;
    if (state_ == State::kName && marker == kNameEnd) {
      state_ = State::kArguments;
    } else if (state_ == State::kName && marker != kFunctionEnd) {
      name_ += marker;
    } else if (marker == kFunctionEnd) {
      end_call(out);
      state_ = State::kAfterFunction;
    } else if (marker == kFunction) {
      state_ = State::kName;
    } else {
      state_ = marker == kCall ? State::kCall : State::kContent;
    }
  }

  void end_call(ParsedMessage& out) {
    const std::string name(python_strip(std::exchange(name_, {})));
    const std::string arguments = std::exchange(arguments_, {});
    if (name.empty()) {
      return;
    }
    out.tool_calls.push_back({name, read_arguments(arguments, tool_properties(tools_, name))});
    called_ = true;
    held_.clear();
  }

  nlohmann::json tools_;
  State state_ = State::kContent;
  std::string text_;  // may be the beginning of a marker
  std::string held_;  // content if no call follows
  std::string name_;
  std::string arguments_;
  bool marked_ = false;
  bool called_ = false;
};

}  // namespace

std::unique_ptr<MessageParser> qwen3_coder_parser(const ParserOptions& options) {
  return std::make_unique<StagedParser>(kQwenReasoning, options, [tools = options.tools] {
    return std::make_unique<Qwen3CoderReader>(tools);
  });
}

}  // namespace ringside::rl
