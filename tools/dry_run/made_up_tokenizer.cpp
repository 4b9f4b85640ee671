#include "tools/dry_run/made_up_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/byte_level.h"

namespace ringside::tools {
namespace {

constexpr int64_t kBytes = 256;
constexpr const char* kEnd = "<|endoftext|>";
constexpr std::array kMarkers = {kEnd,
                                 "<|im_start|>",
                                 "<|im_end|>",
                                 "<|begin_of_text|>",
                                 "<|start_header_id|>",
                                 "<|end_header_id|>",
                                 "<|eot_id|>"};

}  // namespace

std::string made_up_tokenizer() {
  nlohmann::ordered_json vocabulary, added = nlohmann::ordered_json::array();
  for (int64_t byte = 0; byte < kBytes; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary[engine::bytes_to_alphabet({&c, 1})] = byte;
  }
  for (std::size_t i = 0; i < kMarkers.size(); ++i) {
    added.push_back({{"id", kBytes + static_cast<int64_t>(i)},
                     {"content", kMarkers[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}};
  const nlohmann::ordered_json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  return json.dump() + "\n";
}

std::string made_up_tokenizer_config() {
  const nlohmann::ordered_json json = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"eos_token", kEnd},
      {"chat_template",
       "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
       "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}};
  return json.dump() + "\n";
}

MadeUpIds made_up_ids() { return {kBytes + static_cast<int64_t>(kMarkers.size()), kBytes}; }

}  // namespace ringside::tools
