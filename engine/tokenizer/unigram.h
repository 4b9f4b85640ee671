// Unigram model of SentencePiece, equal to Hugging Face's models::Unigram: the segmentation of a
// word into pieces whose scores have the largest sum.
// Source: Kudo 2018, "Subword Regularization".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/token_model.h"

namespace ringside::engine {

class Unigram final : public TokenModel {
 public:
  // pieces: text and score (a log-probability) of each id in order.
  // byte_fallback: text without a piece becomes the pieces "<0x00>" to "<0xFF>" of its bytes, if
  // all of them are there.
  // Throws: std::runtime_error when there is no piece, or unk_id is none of them.
  Unigram(std::vector<std::pair<std::string, double>> pieces, std::optional<int64_t> unk_id,
          bool byte_fallback);

  // Viterbi. Characters without a piece count as the unknown piece, whose score is that of the
  // worst piece less 10; adjacent ones become one. O(length x longest piece).
  // Throws: std::invalid_argument for text without a piece when there is no unk_id, and for text
  // that is not UTF-8.
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  struct Best {
    double score = 0.0;
    std::size_t begin = 0;
    int64_t id = -1;  // of the piece that ends here; -1: none yet
  };
  std::vector<Best> best_paths(std::string_view word) const;
  void append_unknown(std::string_view text, std::vector<int64_t>& ids) const;

  std::vector<double> scores_;
  std::optional<int64_t> unk_id_;
  double unk_score_ = 0.0;
  bool byte_fallback_;
  std::size_t longest_ = 0;  // bytes of a piece
};

}  // namespace ringside::engine
