// Normalizer, pre-tokenizer and decoder of a tokenizer.json, each built from its JSON.
//
// Throws: every builder: std::runtime_error naming an unknown component or option; an exception of
// the JSON library on a field that is missing or of another type. What they build throws
// std::runtime_error at the limit of a regular expression, and std::invalid_argument when a text
// that is normalized is not UTF-8.
// Thread safety: any thread.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ringside::engine {

// Text to text.
using Normalizer = std::function<std::string(std::string)>;
// Text to words. at_start: the text begins where the whole text does.
using PreTokenizer = std::function<std::vector<std::string>(std::string, bool at_start)>;
using Decoding = std::function<std::string(std::vector<std::string>)>;  // tokens to text

// The field "normalizer". Supports null, NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend,
// Replace, Strip, Sequence.
Normalizer make_normalizer(const nlohmann::json& json);

// The field "pre_tokenizer". Supports null, ByteLevel, Metaspace, Split, Punctuation, Whitespace,
// WhitespaceSplit, Digits, Sequence.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

// The field "decoder". Supports null (tokens joined by spaces), ByteFallback, ByteLevel, Fuse,
// Metaspace, Replace, Strip, Sequence.
Decoding make_decoding(const nlohmann::json& json);

}  // namespace ringside::engine
