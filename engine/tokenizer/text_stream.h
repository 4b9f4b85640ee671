// Text of ids that arrive one by one.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace ringside::engine {

// What add() has returned, joined, is a beginning of decode() of all ids: characters whose last
// bytes are still to come are held back, and so are byte pieces (<0x41>) until another token
// follows, because one of them that is no text changes those before it. The rest of decode() is
// what was held back.
// A decoder that strips the end of the text (Strip with stop) is not supported: its text may be
// shorter than what was returned.
// Thread safety: none.
class TextStream {
 public:
  // `tokenizer` must outlive this.
  explicit TextStream(const Tokenizer& tokenizer);

  // Takes the next id. Returns the text that is certain now, whatever ids follow.
  std::string add(int64_t id);

 private:
  void forget_front();

  const Tokenizer& tokenizer_;
  std::unordered_set<int64_t> byte_pieces_;
  // The last ids: some whose text was returned, so that the first token of a text, which decoders
  // treat apart, is not among those that follow.
  std::vector<int64_t> window_;
  std::size_t returned_ = 0;  // bytes of the window's text
};

}  // namespace ringside::engine
