// Normalizer, pre-tokenizer and decoder of a tokenizer.json, each built from its JSON.
//
// Throws: every builder: std::runtime_error naming an unknown component or option.
// Thread safety: any thread.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ringside::engine {

using Normalizer = std::function<std::string(std::string)>;
using PreTokenizer = std::function<std::vector<std::string>(std::string)>;  // text to words
using Decoding = std::function<std::string(std::vector<std::string>)>;      // tokens to text

// Supports null, NFC, Sequence.
Normalizer make_normalizer(const nlohmann::json& json);

// Supports null, ByteLevel, Split, Whitespace, WhitespaceSplit, Digits, Sequence.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

// Supports null (tokens joined by spaces), ByteLevel, Fuse, Sequence.
Decoding make_decoding(const nlohmann::json& json);

}  // namespace ringside::engine
