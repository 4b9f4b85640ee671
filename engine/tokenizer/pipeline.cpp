#include "engine/tokenizer/pipeline.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// A word in Hugging Face's Whitespace: Rust's \w, which is wider than PCRE2's.
constexpr std::string_view kWhitespacePattern =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

enum class Keep { kAll, kMatches, kGaps };

// A component's type. The parts of a Sequence are under `list_key`.
std::string type_of(const Json& json) { return json.at("type").get<std::string>(); }

[[noreturn]] void unsupported(const std::string& component, const std::string& type) {
  throw std::runtime_error(component + " of type '" + type + "' is not supported");
}

PreTokenizer split_step(std::string_view pattern, Keep keep) {
  return [regex = Regex(pattern), keep](const std::string& text) {
    Words words;
    for (const Piece& piece : regex.split(text)) {
      const bool kept = keep == Keep::kAll || piece.is_match == (keep == Keep::kMatches);
      if (kept && piece.end > piece.begin) {
        words.push_back(text.substr(piece.begin, piece.end - piece.begin));
      }
    }
    return words;
  };
}

PreTokenizer make_split(const Json& json) {
  const Json& pattern = json.at("pattern");
  const std::string regex = pattern.contains("Regex")
                                ? pattern.at("Regex").get<std::string>()
                                : quote_pattern(pattern.at("String").get<std::string>());
  const auto behavior = json.at("behavior").get<std::string>();
  const bool invert = json.value("invert", false);
  if (behavior == "Isolated") {
    return split_step(regex, Keep::kAll);
  }
  if (behavior == "Removed") {
    return split_step(regex, invert ? Keep::kMatches : Keep::kGaps);
  }
  throw std::runtime_error("pre_tokenizer Split: behavior '" + behavior +
                           "' is not supported, expected Isolated or Removed");
}

PreTokenizer make_byte_level(const Json& json) {
  const bool prefix_space = json.value("add_prefix_space", true);
  const PreTokenizer split =
      json.value("use_regex", true) ? split_step(kByteLevelPattern, Keep::kAll) : nullptr;
  return [prefix_space, split](const std::string& text) {
    std::string padded(prefix_space && !text.starts_with(' ') ? 1 : 0, ' ');
    padded += text;
    Words words = split ? split(std::move(padded)) : Words{std::move(padded)};
    for (std::string& word : words) {
      word = bytes_to_alphabet(word);
    }
    return words;
  };
}

PreTokenizer in_turn(std::vector<PreTokenizer> steps) {
  return [steps = std::move(steps)](std::string text) {
    Words words = {std::move(text)};
    for (const PreTokenizer& step : steps) {
      Words next;
      for (std::string& word : words) {
        for (std::string& piece : step(std::move(word))) {
          next.push_back(std::move(piece));
        }
      }
      words = std::move(next);
    }
    return words;
  };
}

std::string join(const Words& tokens, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    text += i == 0 ? "" : separator;
    text += tokens[i];
  }
  return text;
}

std::string decode_byte_level(const Words& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += alphabet_to_bytes(token);
  }
  return to_valid_utf8(bytes);
}

}  // namespace

Normalizer make_normalizer(const Json& json) {
  if (json.is_null()) {
    return [](std::string text) { return text; };
  }
  const std::string type = type_of(json);
  if (type == "NFC") {
    return [](const std::string& text) { return to_nfc(text); };
  }
  if (type != "Sequence") {
    unsupported("normalizer", type);
  }
  std::vector<Normalizer> steps;
  for (const Json& step : json.at("normalizers")) {
    steps.push_back(make_normalizer(step));
  }
  return [steps](std::string text) {
    for (const Normalizer& step : steps) {
      text = step(std::move(text));
    }
    return text;
  };
}

PreTokenizer make_pre_tokenizer(const Json& json) {
  if (json.is_null()) {
    return [](std::string text) { return Words{std::move(text)}; };
  }
  const std::string type = type_of(json);
  if (type == "ByteLevel") {
    return make_byte_level(json);
  }
  if (type == "Split") {
    return make_split(json);
  }
  if (type == "Whitespace") {
    return split_step(kWhitespacePattern, Keep::kMatches);
  }
  if (type == "WhitespaceSplit") {
    return split_step(R"(\S+)", Keep::kMatches);
  }
  if (type == "Digits") {
    return split_step(json.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
                      Keep::kAll);
  }
  if (type != "Sequence") {
    unsupported("pre_tokenizer", type);
  }
  std::vector<PreTokenizer> steps;
  for (const Json& step : json.at("pretokenizers")) {
    steps.push_back(make_pre_tokenizer(step));
  }
  return in_turn(std::move(steps));
}

Decoding make_decoding(const Json& json) {
  if (json.is_null()) {
    return [](const Words& tokens) { return join(tokens, " "); };
  }
  const std::string type = type_of(json);
  if (type == "ByteLevel") {
    return decode_byte_level;
  }
  if (type == "Fuse") {
    return [](const Words& tokens) { return join(tokens, ""); };
  }
  if (type != "Sequence") {
    unsupported("decoder", type);
  }
  std::vector<Decoding> steps;
  for (const Json& step : json.at("decoders")) {
    steps.push_back(make_decoding(step));
  }
  return [steps](Words tokens) {
    for (const Decoding& step : steps) {
      tokens = {step(std::move(tokens))};
    }
    return join(tokens, "");
  };
}

}  // namespace ringside::engine
