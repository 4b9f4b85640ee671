#include "engine/tokenizer/text_stream.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace ringside::engine {
namespace {

constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD
constexpr int kMostCutBytes = 3;                           // of a character of UTF-8
constexpr std::size_t kWindow = 32;
constexpr std::size_t kKept = 4;

// Bytes at the end of a text that may be those of a character whose last bytes are still to come:
// each of its first bytes is at most one U+FFFD.
std::size_t cut_bytes(std::string_view text) {
  std::size_t bytes = 0;
  for (int i = 0; i < kMostCutBytes && text.ends_with(kNoCharacter); ++i) {
    text.remove_suffix(kNoCharacter.size());
    bytes += kNoCharacter.size();
  }
  return bytes;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (int byte = 0; byte < 256; ++byte) {
    char piece[8];
    std::snprintf(piece, sizeof piece, "<0x%02X>", static_cast<unsigned>(byte));
    if (const auto id = tokenizer.token_id(piece)) {
      byte_pieces_.insert(*id);
    }
  }
}

std::string TextStream::add(int64_t id) {
  window_.push_back(id);
  if (byte_pieces_.contains(id)) {
    return "";
  }
  const std::string text = tokenizer_.decode(window_, /*skip_special=*/false);
  const std::size_t certain = text.size() - cut_bytes(text);
  if (certain <= returned_) {
    return "";
  }
  std::string next = text.substr(returned_, certain - returned_);
  returned_ = certain;
  if (certain == text.size() && window_.size() >= kWindow) {
    forget_front();
  }
  return next;
}

// Keeps the last ids, whose text ends with a whole character.
void TextStream::forget_front() {
  const std::vector<int64_t> kept(window_.end() - kKept, window_.end());
  const std::string kept_text = tokenizer_.decode(kept, /*skip_special=*/false);
  if (!kept_text.empty()) {
    window_ = kept;
    returned_ = kept_text.size();
  }
}

}  // namespace ringside::engine
