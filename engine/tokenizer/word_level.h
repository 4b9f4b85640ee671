// Word-level tokenizer model: every word is one token.
#pragma once

#include <string>
#include <utility>

#include "engine/tokenizer/token_model.h"

namespace ringside::engine {

class WordLevel final : public TokenModel {
 public:
  // unk_token: of words that are not in the vocabulary; it need not be in it either.
  WordLevel(Vocabulary vocabulary, std::string unk_token)
      : TokenModel(std::move(vocabulary)), unk_token_(std::move(unk_token)) {}

  // Throws: std::invalid_argument on an unknown word when unk_token is not in the vocabulary.
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  std::string unk_token_;
};

}  // namespace ringside::engine
