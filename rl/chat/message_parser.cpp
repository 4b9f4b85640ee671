#include "rl/chat/message_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ringside::rl {
namespace {

// A stream moves the text after each marker to the front, so a long text is read in such slices.
constexpr std::size_t kSliceBytes = 4096;

// Bytes at the end of the text that begin a character of UTF-8 without ending it.
std::size_t cut_character_bytes(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size()); ++bytes) {
    const auto byte = static_cast<unsigned char>(text[text.size() - bytes]);
    if ((byte & 0xC0U) == 0x80U) {
      continue;  // not the first byte of a character
    }
    const std::size_t whole = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return whole > bytes ? bytes : 0;
  }
  return 0;
}

}  // namespace

void ParsedMessage::append(ParsedMessage part) {
  reasoning += part.reasoning;
  content += part.content;
  std::move(part.tool_calls.begin(), part.tool_calls.end(), std::back_inserter(tool_calls));
}

ParsedMessage MessageStream::feed(std::string_view piece) {
  ParsedMessage out;
  while (!piece.empty()) {
    std::string text = std::exchange(cut_character_, {});
    text += piece.substr(0, kSliceBytes);
    piece.remove_prefix(std::min(kSliceBytes, piece.size()));
    const std::size_t whole = text.size() - cut_character_bytes(text);
    cut_character_ = text.substr(whole);
    out.append(read(std::string_view(text).substr(0, whole)));
  }
  return out;
}

ParsedMessage MessageStream::finish() {
  ParsedMessage part = read(std::exchange(cut_character_, {}));
  part.append(end());
  return part;
}

ParsedMessage MessageParser::parse(std::string_view text) const {
  const auto whole = stream();
  ParsedMessage message = whole->feed(text);
  message.append(whole->finish());
  return message;
}

}  // namespace ringside::rl
