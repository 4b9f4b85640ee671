// Tokenizer model: converts one word of pre-tokenized text to ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ringside::engine {

// Hash of a text that is the same for std::string and std::string_view.
struct TextHash {
  using is_transparent = void;
  // The hash of the text's bytes.
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
// Token text to id; can be looked up by string_view.
using Vocabulary = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

// The id of a token; nullopt when the vocabulary lacks it.
inline std::optional<int64_t> find_id(const Vocabulary& vocabulary, std::string_view token) {
  const auto found = vocabulary.find(token);
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

// Thread safety: any thread.
class TokenModel {
 public:
  // vocabulary: every token that encode_word() may give.
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;

  // Appends the ids of `word` (UTF-8).
  // Throws: std::invalid_argument on a word that the model cannot express.
  virtual void encode_word(std::string_view word, std::vector<int64_t>& ids) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

}  // namespace ringside::engine
