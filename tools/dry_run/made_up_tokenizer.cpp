#include "tools/dry_run/made_up_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/tokenizer/byte_level.h"

namespace ringside::tools {
namespace {

constexpr int64_t kBytes = 256;
constexpr std::string_view kEnd = "<|endoftext|>";
constexpr std::string_view kVisionStart = "<|vision_start|>", kVisionEnd = "<|vision_end|>";
constexpr std::string_view kImage = "<|image_pad|>", kVideo = "<|video_pad|>";
constexpr std::array<std::string_view, 11> kMarkers = {kEnd,
                                                       "<|im_start|>",
                                                       "<|im_end|>",
                                                       "<|begin_of_text|>",
                                                       "<|start_header_id|>",
                                                       "<|end_header_id|>",
                                                       "<|eot_id|>",
                                                       kVisionStart,
                                                       kVisionEnd,
                                                       kImage,
                                                       kVideo};

int64_t id_of(std::string_view marker) {
  return kBytes + (std::ranges::find(kMarkers, marker) - kMarkers.begin());
}

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
       "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
       "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
       "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
       "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
       "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
       "%}<|im_start|>assistant\n{% endif %}"}};
  return json.dump() + "\n";
}

MadeUpIds made_up_ids() {
  return {kBytes + static_cast<int64_t>(kMarkers.size()),
          id_of(kEnd),
          id_of(kVisionStart),
          id_of(kVisionEnd),
          id_of(kImage),
          id_of(kVideo)};
}

}  // namespace ringside::tools
