// Precompiled normalizer of SentencePiece's converted tokenizers: a map from character sequences to
// their replacements ("precompiled_charsmap").
// Source: the crate spm_precompiled, which Hugging Face's normalizers::Precompiled uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// Thread safety: any thread.
class CharacterMap {
 public:
  // charsmap: base64 of the bytes of a double-array trie, preceded by their number as 4 bytes,
  // little-endian, and of the replacements, each ended by a zero byte.
  // Throws: std::runtime_error when it is not of this form.
  explicit CharacterMap(std::string_view charsmap);

  // The text with every grapheme cluster below 6 bytes replaced that has an entry, and else with
  // its characters replaced. Of a cluster the shortest entry counts that it begins with, as in
  // Hugging Face. Clusters are those of utf8proc's Unicode tables, without rule GB9c.
  // Throws: std::invalid_argument for text that is not UTF-8, std::runtime_error when the trie
  // leads out of its array.
  std::string normalize(std::string_view text) const;

 private:
  // Appends the replacement of `part`. Returns false when it has none.
  bool replace(std::string_view part, std::string& result) const;
  uint32_t unit(std::size_t index) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace ringside::engine
