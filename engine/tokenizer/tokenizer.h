// Hugging Face tokenizer of a tokenizer.json: text to ids and back, with the same ids as the Python
// package `tokenizers`. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/post_processor.h"

namespace ringside::engine {

// Immutable.
// Thread safety: any thread.
class Tokenizer {
 public:
  // `path`: a tokenizer.json or the directory that holds one. Supports:
  // - model: BPE (byte-level or by characters, ignore_merges, unk_token, fuse_unk, byte_fallback),
  //   WordLevel, Unigram (byte_fallback)
  // - pre_tokenizer: those of make_pre_tokenizer (pipeline.h)
  // - normalizer, decoder: those of make_normalizer and make_decoding
  // - added_tokens: special or not, normalized or not, lstrip, rstrip, single_word
  // - post_processor: those of read_post_processor (post_processor.h)
  // Throws: std::runtime_error naming the file and the unsupported component or option.
  static Tokenizer load(const std::filesystem::path& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text` without special_tokens(), as add_special_tokens=False gives them. The text of
  // an added token ("<|im_start|>") becomes that token, as in
  // Hugging Face. A character that is not in the vocabulary becomes unk_token; in a BPE without
  // unk_token it is dropped.
  // Throws: std::invalid_argument on text that is not UTF-8, and on text that the model cannot
  // express: in a WordLevel model an unknown word when unk_token has no id, in a Unigram model an
  // unknown character without unk_id; std::runtime_error at the limit of a regular expression.
  std::vector<int64_t> encode(std::string_view text) const;

  // The text of `ids`, always UTF-8: bytes that form no character become U+FFFD. Skips ids without
  // a token and, with skip_special, special tokens.
  std::string decode(std::span<const int64_t> ids, bool skip_special) const;

  // The id of a token's exact text, added tokens first; nullopt when there is none.
  std::optional<int64_t> token_id(std::string_view token) const;

  // What the post_processor puts around one text: with it encode()'s ids are those of
  // add_special_tokens=True.
  const SpecialTokens& special_tokens() const;

  // Fields of the file without effect here, as transformers resets them at each call: truncation,
  // padding.
  const std::vector<std::string>& passed_over() const;

  // Highest id + 1. Some ids below it may have no token.
  int64_t id_bound() const;

  // Number of different tokens, added ones included.
  int64_t vocab_size() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace ringside::engine
