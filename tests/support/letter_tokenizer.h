// A tokenizer.json with one token a letter, for the golden models of 32 ids: unknown 0, the end
// marker ";" 1, then a to z and digits.
#pragma once

#include <string>

namespace ringside::test {

// The text of the file.
inline std::string letter_tokenizer() {
  std::string vocabulary = R"("<unk>": 0, ";": 1)";
  for (int id = 2; id < 32; ++id) {
    const char c = static_cast<char>(id < 28 ? 'a' + id - 2 : '0' + id - 28);
    vocabulary += std::string(", \"") + c + "\": " + std::to_string(id);
  }
  return R"({"added_tokens": [{"id": 1, "content": ";", "special": true, "normalized": false}], "normalizer": null,
             "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
             "model": {"type": "BPE", "unk_token": "<unk>", "merges": [], "vocab": {)" +
         vocabulary + "}}}";
}

// The same with a post-processor that puts ";" before a text.
inline std::string letter_tokenizer_with_bos() {
  const std::string none = R"("post_processor": null)";
  std::string text = letter_tokenizer();
  return text.replace(text.find(none), none.size(),
                      R"("post_processor": {"type": "TemplateProcessing",
                         "single": [{"SpecialToken": {"id": ";"}}, {"Sequence": {"id": "A"}}],
                         "special_tokens": {";": {"id": ";", "ids": [1], "tokens": [";"]}}})");
}

}  // namespace ringside::test
