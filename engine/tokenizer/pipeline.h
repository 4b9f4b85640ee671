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
// Text to words. at_start: the text begins where the whole text does.
using PreTokenizer = std::function<std::vector<std::string>(std::string, bool at_start)>;
using Decoding = std::function<std::string(std::vector<std::string>)>;  // tokens to text

// Supports null, NFC, NFKC, Precompiled, Prepend, Replace, Strip, Sequence.
Normalizer make_normalizer(const nlohmann::json& json);

// Supports null, ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit, Digits, Sequence.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

// Supports null (tokens joined by spaces), ByteFallback, ByteLevel, Fuse, Metaspace, Replace,
// Strip, Sequence.
Decoding make_decoding(const nlohmann::json& json);

}  // namespace ringside::engine
