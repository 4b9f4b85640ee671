// Chat message of a completion: reasoning, content and tool calls, read from the model's text as a
// whole or piece by piece. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text, as OpenAI's protocol sends it; not checked in every format
  std::string id = {};    // that the model gave the call; "" where its format has none
  bool operator==(const ToolCall&) const = default;
};

// A message, or the next part of one.
struct ParsedMessage {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;

  // Appends the part that follows.
  void append(ParsedMessage part);
  bool operator==(const ParsedMessage&) const = default;
};

// One completion, read as it is generated. The parts, appended to each other, are the message that
// MessageParser::parse() makes of the whole text, wherever the text is cut.
// Thread safety: none.
class MessageStream {
 public:
  virtual ~MessageStream() = default;

  // Takes the next piece of the text, which may end inside a character or a marker. Returns what is
  // certain to be in the message whatever follows; it can be sent at once. It holds whole
  // characters of a text that is UTF-8, and nothing of a marker.
  ParsedMessage feed(std::string_view piece);

  // The rest of the message, at the end of the text. Nothing may be fed afterwards.
  ParsedMessage finish();

 private:
  // The same for pieces that end between characters.
  virtual ParsedMessage read(std::string_view piece) = 0;
  virtual ParsedMessage end() = 0;

  std::string cut_character_;  // bytes of a character whose last bytes are still to come
};

// The format in which a family of models writes reasoning and tool calls.
// Thread safety: all functions may be called at the same time.
class MessageParser {
 public:
  virtual ~MessageParser() = default;

  // The message of a whole completion, special tokens included and without the stop token. Text
  // that does not follow the format is content; nothing throws.
  ParsedMessage parse(std::string_view text) const;

  // A completion at its first byte. Does not outlive the parser.
  virtual std::unique_ptr<MessageStream> stream() const = 0;
};

}  // namespace ringside::rl
