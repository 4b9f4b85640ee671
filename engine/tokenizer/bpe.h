// Byte-pair encoding of one word, equal to Hugging Face's models::BPE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/tokenizer/token_model.h"

namespace ringside::engine {

// Options of the model in tokenizer.json, by their names there.
struct BpeOptions {
  std::optional<std::string> unk_token;
  bool fuse_unk = false;  // adjacent unknown characters become one unk_token
  // A character without a token becomes the tokens "<0x00>" to "<0xFF>" of its bytes, if all of
  // them are there.
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is taken whole, before any merge
};

class Bpe final : public TokenModel {
 public:
  // merges: pairs of tokens, highest priority first.
  // Throws: std::runtime_error when a merge or unk_token names a token that is not in the
  // vocabulary.
  Bpe(Vocabulary tokens, const std::vector<std::pair<std::string, std::string>>& merges,
      BpeOptions options);

  // Appends the ids of `word`. O(n log n) in its length.
  // Throws: std::invalid_argument when it is not UTF-8.
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  struct Merge {
    int64_t rank;
    int64_t id;
  };
  struct PairHash {
    std::size_t operator()(const std::pair<int64_t, int64_t>& pair) const;
  };

  // Tokens of a text's bytes; empty when one has none.
  std::vector<int64_t> byte_tokens(std::string_view text) const;
  std::vector<int64_t> characters(std::string_view word) const;
  void merge(std::vector<int64_t> symbols, std::vector<int64_t>& ids) const;

  BpeOptions options_;
  std::optional<int64_t> unk_id_;
  std::unordered_map<std::pair<int64_t, int64_t>, Merge, PairHash> merges_;
};

}  // namespace ringside::engine
