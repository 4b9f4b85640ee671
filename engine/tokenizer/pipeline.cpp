#include "engine/tokenizer/pipeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/byte_piece.h"
#include "engine/tokenizer/precompiled.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/split_behavior.h"
#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// ASCII's punctuation, of which Unicode calls some symbols, and Unicode's.
constexpr std::string_view kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";

// A component's type. The parts of a Sequence are under `list_key`.
std::string type_of(const Json& json) { return json.at("type").get<std::string>(); }

[[noreturn]] void unsupported(const std::string& component, const std::string& type) {
  throw std::runtime_error(component + " of type '" + type + "' is not supported");
}

PreTokenizer split_step(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  return [regex = Regex(pattern), behavior, invert](const std::string& text, bool) {
    Words words;
    for (const Piece& word : words_of(regex.split(text), behavior, invert)) {
      words.push_back(text.substr(word.begin, word.end - word.begin));
    }
    return words;
  };
}

PreTokenizer make_split(const Json& json) {
  const Json& pattern = json.at("pattern");
  const std::string regex = pattern.contains("Regex")
                                ? pattern.at("Regex").get<std::string>()
                                : quote_pattern(pattern.at("String").get<std::string>());
  return split_step(regex,
                    split_behavior(json.at("behavior").get<std::string>(), "pre_tokenizer Split"),
                    json.value("invert", false));
}

PreTokenizer make_punctuation(const Json& json) {
  return split_step(kPunctuationPattern, split_behavior(json.value("behavior", "Isolated"),
                                                        "pre_tokenizer Punctuation"));
}

PreTokenizer make_digits(const Json& json) {
  return split_step(R"(\p{N})", json.value("individual_digits", false)
                                    ? SplitBehavior::kIsolated
                                    : SplitBehavior::kContiguous);
}

PreTokenizer make_byte_level(const Json& json) {
  const bool prefix_space = json.value("add_prefix_space", true);
  const PreTokenizer split = json.value("use_regex", true)
                                 ? split_step(kByteLevelPattern, SplitBehavior::kIsolated)
                                 : nullptr;
  return [prefix_space, split](const std::string& text, bool at_start) {
    std::string padded(prefix_space && !text.starts_with(' ') ? 1 : 0, ' ');
    padded += text;
    Words words = split ? split(std::move(padded), at_start) : Words{std::move(padded)};
    for (std::string& word : words) {
      word = bytes_to_alphabet(word);
    }
    return words;
  };
}

PreTokenizer in_turn(std::vector<PreTokenizer> steps) {
  return [steps = std::move(steps)](std::string text, bool at_start) {
    Words words = {std::move(text)};
    for (const PreTokenizer& step : steps) {
      Words next;
      for (std::size_t i = 0; i < words.size(); ++i) {
        for (std::string& piece : step(std::move(words[i]), at_start && i == 0)) {
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

// Text with every occurrence of a pattern replaced.
Normalizer make_replace(const Json& json) {
  const Json& pattern = json.at("pattern");
  const std::string regex = pattern.contains("Regex")
                                ? pattern.at("Regex").get<std::string>()
                                : quote_pattern(pattern.at("String").get<std::string>());
  return [regex = Regex(regex),
          content = json.at("content").get<std::string>()](const std::string& text) {
    std::string result;
    for (const Piece& piece : regex.split(text)) {
      result += piece.is_match ? content : text.substr(piece.begin, piece.end - piece.begin);
    }
    return result;
  };
}

Normalizer make_precompiled(const Json& json) {
  return [map = CharacterMap(json.at("precompiled_charsmap").get<std::string>())](
             const std::string& text) { return map.normalize(text); };
}

// Without white space at the beginning, at the end, or both.
Normalizer make_strip(const Json& json) {
  const bool left = json.value("strip_left", true);
  const bool right = json.value("strip_right", true);
  return [left, right, space = Regex(R"(\s+)")](const std::string& text) {
    std::size_t begin = 0;
    std::size_t end = text.size();
    for (const Piece& piece : space.split(text)) {
      if (left && piece.is_match && piece.begin == 0) {
        begin = piece.end;
      }
      if (right && piece.is_match && piece.end == text.size()) {
        end = std::max(begin, piece.begin);
      }
    }
    return text.substr(begin, end - begin);
  };
}

Normalizer make_prepend(const Json& json) {
  return [prefix = json.at("prepend").get<std::string>()](const std::string& text) {
    return text.empty() ? text : prefix + text;
  };
}

// Where Metaspace puts its mark before a text. Files before tokenizers 0.15 have add_prefix_space.
std::string prepend_scheme(const Json& json) {
  const std::string scheme = json.contains("prepend_scheme")
                                 ? json.at("prepend_scheme").get<std::string>()
                                 : (json.value("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw std::runtime_error("Metaspace: prepend_scheme '" + scheme +
                             "' is not supported, expected always, first or never");
  }
  return scheme;
}

std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t found = text.find(from); found != std::string::npos;
       found = text.find(from, at)) {
    result.append(text, at, found - at).append(to);
    at = found + from.size();
  }
  return result.append(text, at);
}

PreTokenizer make_metaspace(const Json& json) {
  const auto mark = json.at("replacement").get<std::string>();
  const std::string scheme = prepend_scheme(json);
  const bool split = json.value("split", true);
  return [mark, scheme, split](const std::string& text, bool at_start) {
    std::string marked = replaced(text, " ", mark);
    if ((scheme == "always" || (scheme == "first" && at_start)) && !marked.starts_with(mark)) {
      marked = mark + marked;
    }
    Words words;
    for (std::size_t begin = 0; begin < marked.size();) {  // a word begins with the mark
      const std::size_t next =
          split ? std::min(marked.find(mark, begin + 1), marked.size()) : marked.size();
      words.push_back(marked.substr(begin, next - begin));
      begin = next;
    }
    return words;
  };
}

// Tokens to tokens; their texts are joined in the end.
using DecodeStep = std::function<Words(Words)>;

Words decode_byte_level(const Words& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += alphabet_to_bytes(token);
  }
  return {to_valid_utf8(bytes)};
}

// Runs of byte pieces as their text; each byte of a run that is no text becomes U+FFFD.
Words decode_byte_fallback(const Words& tokens) {
  Words result;
  std::string bytes;
  const auto end_run = [&] {
    if (is_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        result.emplace_back("\xEF\xBF\xBD");
      }
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_of_piece(token)) {
      bytes.push_back(static_cast<char>(*byte));
      continue;
    }
    if (!bytes.empty()) {
      end_run();
    }
    result.push_back(token);
  }
  if (!bytes.empty()) {
    end_run();
  }
  return result;
}

// The mark is a space, and nothing in the first token.
DecodeStep make_metaspace_decoding(const Json& json) {
  const auto mark = json.at("replacement").get<std::string>();
  const bool drops_first = prepend_scheme(json) != "never";
  return [mark, drops_first](Words tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replaced(tokens[i], mark, i == 0 && drops_first ? "" : " ");
    }
    return tokens;
  };
}

// Up to `start` times the content at the beginning of each token, and up to `stop` at its end.
DecodeStep make_strip_decoding(const Json& json) {
  const auto content = json.at("content").get<std::string>();
  const auto start = json.at("start").get<int64_t>();
  const auto stop = json.at("stop").get<int64_t>();
  return [content, start, stop](Words tokens) {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start && token.starts_with(content); ++i) {
        token.erase(0, content.size());
      }
      for (int64_t i = 0; i < stop && token.ends_with(content); ++i) {
        token.resize(token.size() - content.size());
      }
    }
    return tokens;
  };
}

DecodeStep make_decode_step(const Json& json) {
  const std::string type = type_of(json);
  if (type == "ByteLevel") {
    return decode_byte_level;
  }
  if (type == "ByteFallback") {
    return decode_byte_fallback;
  }
  if (type == "Fuse") {
    return [](const Words& tokens) { return Words{join(tokens, "")}; };
  }
  if (type == "Metaspace") {
    return make_metaspace_decoding(json);
  }
  if (type == "Strip") {
    return make_strip_decoding(json);
  }
  if (type == "Replace") {
    return [replace = make_replace(json)](Words tokens) {
      std::transform(tokens.begin(), tokens.end(), tokens.begin(), replace);
      return tokens;
    };
  }
  if (type != "Sequence") {
    unsupported("decoder", type);
  }
  std::vector<DecodeStep> steps;
  for (const Json& step : json.at("decoders")) {
    steps.push_back(make_decode_step(step));
  }
  return [steps](Words tokens) {
    for (const DecodeStep& step : steps) {
      tokens = step(std::move(tokens));
    }
    return tokens;
  };
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
  if (type == "NFKC") {
    return [](const std::string& text) { return to_nfkc(text); };
  }
  if (type == "NFD") {
    return [](const std::string& text) { return to_nfd(text); };
  }
  if (type == "NFKD") {
    return [](const std::string& text) { return to_nfkd(text); };
  }
  if (type == "Lowercase") {
    return [](const std::string& text) { return to_lower(text); };
  }
  if (type == "Replace") {
    return make_replace(json);
  }
  if (type == "Prepend") {
    return make_prepend(json);
  }
  if (type == "Precompiled") {
    return make_precompiled(json);
  }
  if (type == "Strip") {
    return make_strip(json);
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
    return [](std::string text, bool) { return Words{std::move(text)}; };
  }
  const std::string type = type_of(json);
  if (type == "ByteLevel") {
    return make_byte_level(json);
  }
  if (type == "Metaspace") {
    return make_metaspace(json);
  }
  if (type == "Split") {
    return make_split(json);
  }
  if (type == "Whitespace") {
    // Words in Rust's sense.
    const std::string word(kRustWord);
    return split_step("[" + word + "]+|[^" + word + "\\s]+", SplitBehavior::kRemoved,
                      /*invert=*/true);
  }
  if (type == "WhitespaceSplit") {
    return split_step(R"(\s)", SplitBehavior::kRemoved);
  }
  if (type == "Punctuation") {
    return make_punctuation(json);
  }
  if (type == "Digits") {
    return make_digits(json);
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
  return
      [step = make_decode_step(json)](Words tokens) { return join(step(std::move(tokens)), ""); };
}

}  // namespace ringside::engine
