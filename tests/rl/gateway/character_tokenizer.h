// A tokenizer.json with one token a character of ASCII, one more for "ab", and the markers of
// ChatML, so that a text has several tokenizations.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ringside::test {

inline constexpr int64_t kTokenAb = 128;
inline constexpr int64_t kTokenStart = 129;  // <|im_start|>
inline constexpr int64_t kTokenEnd = 130;    // <|im_end|>
inline constexpr int64_t kCharacterTokens = 131;

// The id of a character is its code.
inline std::string character_tokenizer() {
  nlohmann::json vocabulary;
  for (int64_t code = 0; code < 128; ++code) {
    vocabulary[std::string(1, static_cast<char>(code))] = code;
  }
  vocabulary["ab"] = kTokenAb;
  nlohmann::json added = nlohmann::json::array();
  for (const auto& [text, id] :
       {std::pair("<|im_start|>", kTokenStart), std::pair("<|im_end|>", kTokenEnd)}) {
    added.push_back({{"id", id}, {"content", text}, {"special", true}, {"normalized", false}});
  }
  const nlohmann::json merges = nlohmann::json::array({"a b"});
  return nlohmann::json{
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", nullptr}, {"merges", merges}, {"vocab", vocabulary}}}}
      .dump();
}

inline constexpr int64_t kBytesEnd = 256;

// A byte-level tokenizer.json in which the id of a byte is its value, and the end marker 256.
inline std::string byte_tokenizer() {
  const auto is_shown = [](int byte) {  // as itself; the others have characters from U+0100 on
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  };
  nlohmann::json vocabulary;
  for (int byte = 0, other = 256; byte < 256; ++byte) {
    const int code = is_shown(byte) ? byte : other++;
    const std::string text = code < 128 ? std::string(1, static_cast<char>(code))
                                        : std::string{static_cast<char>(0xC0 | (code >> 6)),
                                                      static_cast<char>(0x80 | (code & 0x3F))};
    vocabulary[text] = byte;
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return nlohmann::json{
      {"added_tokens",
       {{{"id", kBytesEnd}, {"content", "<|end|>"}, {"special", true}, {"normalized", false}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"unk_token", nullptr},
        {"merges", nlohmann::json::array()},
        {"vocab", vocabulary}}}}
      .dump();
}

// A template of ChatML with tools. Reasoning is written in messages after the last user's alone, as
// many templates do.
inline constexpr const char* kToolTemplate = R"({%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == "user" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{- m.content -}}
{%- for call in m.tool_calls or [] -%}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%})";

}  // namespace ringside::test
