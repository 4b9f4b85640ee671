// The parts of a tokenizer.json around its model: normalizer, pre_tokenizer and decoder, each built
// from its JSON. Each builder throws std::runtime_error that names the component or option it does
// not know. All are thread-safe.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ringside::engine {

using Normalizer = std::function<std::string(std::string)>;
using PreTokenizer = std::function<std::vector<std::string>(std::string)>;  // text to words
using Decoding = std::function<std::string(std::vector<std::string>)>;      // tokens to text

// null, NFC, Sequence.
Normalizer make_normalizer(const nlohmann::json& json);

// null, ByteLevel, Split, Whitespace, WhitespaceSplit, Digits, Sequence.
PreTokenizer make_pre_tokenizer(const nlohmann::json& json);

// null (tokens joined by spaces), ByteLevel, Fuse, Sequence.
Decoding make_decoding(const nlohmann::json& json);

}  // namespace ringside::engine
