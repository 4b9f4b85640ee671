// Completions as documents that a reward model judges, tokenized like the documents of pairs that
// it was trained on. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/chat_format.h"
#include "rl/data/sft_examples.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// Thread safety: none.
class RewardDocuments {
 public:
  // eos: the model's end-of-sequence ids. The tokenizer must outlive the object.
  RewardDocuments(const Config& config, const engine::Tokenizer& tokenizer,
                  std::vector<int64_t> eos);

  // The document of a completion, with one entry at its last token. prompt: a list of chat
  // messages, which data.chat_template renders; or a text. With a chat template a text is what was
  // rendered already, and what the template writes behind an assistant's message follows the
  // completion; without one an end-of-sequence id does. Blocks: with data.chat_template model, as
  // ChatFormat. Throws: std::invalid_argument for another prompt, nothing to read, and a document
  // longer than sft_limit(); std::runtime_error as tokenize_example().
  sp::Document document(const nlohmann::ordered_json& prompt, const std::string& completion);

 private:
  TokenizedExample tokenize(const nlohmann::ordered_json& prompt, const std::string& completion);
  // What the chat template writes behind an assistant's message.
  const std::string& closing();

  const engine::Tokenizer& tokenizer_;
  std::vector<int64_t> eos_;
  ChatFormat chat_;
  SftLimit limit_;
  std::optional<std::string> closing_;  // null before it is needed
};

}  // namespace ringside::rl
