#include "engine/tokenizer/word_level.h"

#include <stdexcept>

namespace ringside::engine {

void WordLevel::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  auto id = find_id(vocabulary(), word);
  if (!id) {
    id = find_id(vocabulary(), unk_token_);
  }
  if (!id) {
    throw std::invalid_argument("WordLevel: '" + std::string(word) +
                                "' is not in the vocabulary, nor is unk_token '" + unk_token_ +
                                "'");
  }
  ids.push_back(*id);
}

}  // namespace ringside::engine
