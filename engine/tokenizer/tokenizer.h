// A Hugging Face tokenizer.json: text to ids and back, with the ids that the Python package
// `tokenizers` gives. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// Immutable: any number of threads may use one.
class Tokenizer {
 public:
  // `path`: a tokenizer.json or the directory that holds one. Understands
  //   model           BPE (byte-level or by characters, ignore_merges, unk_token, fuse_unk),
  //   WordLevel normalizer      none, NFC, Sequence of these pre_tokenizer   none, ByteLevel, Split
  //   (Isolated or Removed), Whitespace, WhitespaceSplit, Digits, Sequence decoder         none,
  //   ByteLevel, Fuse, Sequence of these added_tokens    special or not, normalized or not
  // The post_processor is left alone: encode() is add_special_tokens=False. Throws
  // std::runtime_error that names the file and the component or option it does not understand.
  static Tokenizer load(const std::filesystem::path& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`. Text of an added token ("<|im_start|>") becomes that token, as in Hugging
  // Face. A character that the vocabulary lacks becomes unk_token or, in a BPE without one,
  // nothing. Throws std::invalid_argument on text that is not UTF-8, or, in a WordLevel model, on a
  // word without an id when unk_token has none either.
  std::vector<int64_t> encode(std::string_view text) const;

  // The text of `ids`, always UTF-8: bytes that form no character become U+FFFD. Ids without a
  // token are left out, with skip_special those of special tokens too.
  std::string decode(std::span<const int64_t> ids, bool skip_special) const;

  std::optional<int64_t> token_id(std::string_view token) const;

  // One more than the highest id; some ids below it may have no token.
  int64_t id_bound() const;

  // Different tokens, added ones included.
  int64_t vocab_size() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace ringside::engine
