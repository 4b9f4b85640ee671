#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "rl/chat/formats.h"
#include "rl/chat/json_value.h"
#include "rl/chat/markers.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kCall = "<|call|>";
constexpr std::string_view kFunctions = "functions.";

struct Header {
  std::string channel;
  std::string recipient;
  bool has_recipient = false;
  std::string content_type;
};

std::vector<std::string> words_of(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// Takes the channel out of a header's text. False when its marker has no name after it.
bool take_channel(std::string& text, Header& header) {
  const std::size_t marker = text.find(kChannel);
  if (marker == std::string::npos) {
    return true;
  }
  const std::size_t name = marker + kChannel.size();
  const std::size_t end = std::min(text.find_first_of(" \t\n\r\f\v<", name), text.size());
  header.channel = text.substr(name, end - name);
  text.erase(marker, end - marker);
  return !header.channel.empty();
}

// The header of an assistant's message: ROLE to=RECIPIENT<|channel|>CHANNEL TYPE, the recipient
// after the channel or before it. nullopt for another role's and for one that cannot be read.
// `first`: the prompt ends with the role.
// Source: parse_header_from_string() of openai_harmony 0.0.8.
std::optional<Header> read_header(std::string text, bool first) {
  Header header;
  if (!take_channel(text, header)) {
    return std::nullopt;
  }
  const std::size_t constrain = text.find(kConstrain);
  if (constrain != std::string::npos) {
    text.insert(constrain, " ");
  }
  std::vector<std::string> words = words_of(text);
  if (!words.empty() && words.front() == "assistant") {
    words.erase(words.begin());
  } else if (!first) {
    return std::nullopt;
  }
  if (words.size() > 2 || (words.size() == 2 && words.back().starts_with("to="))) {
    return std::nullopt;
  }
  if (!words.empty()) {
    std::string_view recipient = words.front();
    recipient.remove_prefix(recipient.starts_with("to=") ? 3 : 0);
    header.recipient = recipient;
    header.has_recipient = true;
    header.content_type = words.size() == 2 ? words.back() : "";
  }
  return header;
}

// Whether a text without the end of a header may be the beginning of one, and not an answer in no
// format at all.
bool may_be_header(std::string_view text) {
  const std::string_view begin = python_strip(text);
  const auto agrees = [&](std::string_view front) {
    return begin.starts_with(front) || front.starts_with(begin);
  };
  return text.find("<|") != std::string_view::npos || agrees("<|") || agrees("to=") ||
         begin.starts_with("assistant");
}

enum class Kind { kReasoning, kContent, kCall, kDropped };

bool is_function(std::string_view recipient) {
  if (recipient.starts_with(kFunctions)) {
    return recipient.size() > kFunctions.size();
  }
  const std::string_view server = recipient.substr(0, recipient.find('.'));
  return !recipient.empty() && !recipient.starts_with("<|") && recipient != "assistant" &&
         server != "python" && server != "browser" && server != "container";
}

Kind kind_of(const Header& header) {
  if (header.has_recipient && is_function(header.recipient)) {
    return Kind::kCall;
  }
  if (header.channel == "analysis") {
    return Kind::kReasoning;
  }
  const bool preamble = header.channel == "commentary" && !header.has_recipient;
  return header.channel == "final" || preamble ? Kind::kContent : Kind::kDropped;
}

std::string arguments_of(const Header& header, std::string_view text) {
  const bool json =
      header.content_type.empty() || header.content_type.find("json") != std::string::npos;
  const auto value = json ? read_json_text(text) : std::nullopt;
  return value ? to_text(*value) : std::string(text);
}

class HarmonyStream : public MessageStream {
 private:
  enum class State { kHeader, kBody, kBetween };

  ParsedMessage read(std::string_view piece) override {
    text_ += piece;
    ParsedMessage out;
    while (step(out)) {
    }
    return out;
  }

  ParsedMessage end() override {
    ParsedMessage out;
    if (state_ == State::kBody) {
      take_body(std::exchange(text_, {}), out);
      end_message(out);
    } else if (first_ && !may_be_header(text_)) {
      out.content = std::exchange(text_, {});
    }
    return out;
  }

  // Reads up to the next marker of the state; false when the text does not have it yet.
  bool step(ParsedMessage& out) {
    if (state_ == State::kBetween) {
      return take_to({kStart}, State::kHeader).has_value();
    }
    if (state_ == State::kHeader) {
      const std::size_t at = text_.find(kMessage, searched_);
      searched_ =
          at == std::string::npos ? text_.size() - std::min(text_.size(), kMessage.size()) : 0;
      if (at == std::string::npos) {
        return false;
      }
      const auto header = read_header(text_.substr(0, at), std::exchange(first_, false));
      text_.erase(0, at + kMessage.size());
      header_ = header.value_or(Header());
      kind_ = header ? kind_of(header_) : Kind::kDropped;
      begun_ = false;
      state_ = State::kBody;
      return true;
    }
    const std::size_t held = begun_marker_bytes(text_, {kEnd, kReturn, kCall});
    const auto body = take_to({kEnd, kReturn, kCall}, State::kBetween);
    if (body) {
      take_body(*body, out);
      end_message(out);
      return true;
    }
    take_body(std::string_view(text_).substr(0, text_.size() - held), out);
    text_.erase(0, text_.size() - held);
    return false;
  }

  // The text before the first of the markers, removed with it; nullopt when there is none.
  std::optional<std::string> take_to(std::initializer_list<std::string_view> markers, State next) {
    const MarkerPlace place = first_marker(text_, markers);
    if (place.marker.empty()) {
      return std::nullopt;
    }
    std::string before = text_.substr(0, place.at);
    text_.erase(0, place.at + place.marker.size());
    state_ = next;
    return before;
  }

  // Messages of a kind stand on lines of their own.
  void take_body(std::string_view text, ParsedMessage& out) {
    if (kind_ == Kind::kCall) {
      arguments_ += text;
    } else if (kind_ != Kind::kDropped && !text.empty()) {
      const bool reasoning = kind_ == Kind::kReasoning;
      bool& any = reasoning ? any_reasoning_ : any_content_;
      std::string& to = reasoning ? out.reasoning : out.content;
      to += any && !begun_ ? "\n" : "";
      to += text;
      any = true;
      begun_ = true;
    }
  }

  void end_message(ParsedMessage& out) {
    if (kind_ == Kind::kCall) {
      const std::string text = std::exchange(arguments_, {});
      std::string_view name = header_.recipient;
      name.remove_prefix(name.starts_with(kFunctions) ? kFunctions.size() : 0);
      out.tool_calls.push_back({std::string(name), arguments_of(header_, text)});
    }
  }

  State state_ = State::kHeader;
  bool first_ = true;
  std::string text_;          // what is not yet certain
  std::size_t searched_ = 0;  // bytes of a header known to hold no end of it
  Header header_;
  Kind kind_ = Kind::kDropped;
  std::string arguments_;
  bool begun_ = false;  // text of this message was taken
  bool any_reasoning_ = false;
  bool any_content_ = false;
};

class HarmonyParser : public MessageParser {
 public:
  std::unique_ptr<MessageStream> stream() const override {
    return std::make_unique<HarmonyStream>();
  }
};

}  // namespace

std::unique_ptr<MessageParser> harmony_parser(const ParserOptions& /*options*/) {
  return std::make_unique<HarmonyParser>();
}

}  // namespace ringside::rl
