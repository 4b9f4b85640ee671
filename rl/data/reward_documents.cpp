#include "rl/data/reward_documents.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "rl/data/preference_examples.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

using nlohmann::ordered_json;

RewardDocuments::RewardDocuments(const Config& config, const engine::Tokenizer& tokenizer,
                                 std::vector<int64_t> eos)
    : tokenizer_(tokenizer), eos_(std::move(eos)), chat_(config), limit_(sft_limit(config)) {}

const std::string& RewardDocuments::closing() {
  if (!closing_) {
    closing_ = chat_.closing(nullptr);
    if (!closing_) {
      throw std::runtime_error("data.chat_template cannot render a question with an answer");
    }
  }
  return *closing_;
}

TokenizedExample RewardDocuments::tokenize(const ordered_json& prompt,
                                           const std::string& completion) {
  if (prompt.is_array()) {
    if (chat_.kind() == ChatTemplate::kNone) {
      throw std::invalid_argument(
          "the prompt is a list of messages; expected a text, or data.chat_template");
    }
    Conversation conversation{prompt, nullptr};
    conversation.messages.push_back({{"role", "assistant"}, {"content", completion}});
    return tokenize_example({"", "", std::move(conversation)}, tokenizer_, eos_, chat_);
  }
  if (!prompt.is_string()) {
    throw std::invalid_argument("\"prompt\" is no text and no list of messages");
  }
  if (chat_.kind() == ChatTemplate::kNone) {
    return tokenize_example({prompt.get<std::string>(), completion, {}}, tokenizer_, eos_, chat_);
  }
  return {tokenizer_.encode(prompt.get<std::string>() + completion + closing()), {}, {}};
}

sp::Document RewardDocuments::document(const ordered_json& prompt, const std::string& completion) {
  const TokenizedExample example = tokenize(prompt, completion);
  const auto ids = static_cast<int64_t>(example.ids.size());
  if (ids == 0) {
    throw std::invalid_argument("the prompt and the completion have no token");
  }
  if (ids > limit_.ids) {
    throw std::invalid_argument(overlong_document("the completion with its prompt", ids, limit_));
  }
  return make_reward_document(example);
}

}  // namespace ringside::rl
