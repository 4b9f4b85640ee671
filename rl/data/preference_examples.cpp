#include "rl/data/preference_examples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "rl/data/prompt_tokens.h"
#include "rl/data/record_images.h"
#include "rl/data/record_members.h"

namespace ringside::rl {
namespace {

using Record = nlohmann::ordered_json;

// The prompt of a record with a pair; null where it has none.
const Record& prompt_of_pair(const Record& record, const DataConfig& config) {
  static const Record kNone;
  const Record* found = find_member(record, config.prompt_key);
  return found == nullptr ? kNone : *found;
}

std::string pair_forms(const DataConfig& config) {
  return "expected {\"" + config.prompt_key + "\", \"" + config.chosen_key + "\", \"" +
         config.rejected_key + "\"} or {\"" + config.chosen_key + "\", \"" + config.rejected_key +
         "\"}, texts or lists of messages";
}

// The messages of one side, after those of the prompt if it is messages.
SftExample side_of_pair(const Record& record, const Record& prompt, const Record& side,
                        const DataConfig& config) {
  SftExample example;
  if (!side.is_array()) {
    example.prompt = prompt.is_null() ? "" : prompt.get<std::string>();
    example.completion = side.get<std::string>();
    return example;
  }
  Record messages = prompt.is_array() ? prompt : Record::array();
  messages.insert(messages.end(), side.begin(), side.end());
  example.conversation = conversation_of(record, messages, config);
  if (has_image_parts(example.conversation.messages)) {
    throw std::invalid_argument("a message has an image or a video; expected text");
  }
  return example;
}

// A prompt that is text says again what the conversation begins with, perhaps after a system
// message.
void check_repeated_prompt(const Record& prompt, const Record& messages, const DataConfig& config) {
  for (const Record& message : messages) {
    if (message.at("role") == "user") {
      if (message.value("content", Record()) == prompt) {
        return;
      }
      break;
    }
  }
  throw std::invalid_argument("\"" + config.prompt_key + "\" is text, \"" + config.chosen_key +
                              "\" and \"" + config.rejected_key +
                              "\" are messages, and it is not their first message of a user; "
                              "expected messages in all three, or conversations that begin with "
                              "the prompt");
}

std::size_t common_messages(const Record& a, const Record& b) {
  std::size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a[count] == b[count]) {
    ++count;
  }
  return count;
}

// A whole text with an end of sequence.
TokenizedExample tokenize_whole(const std::string& text, const engine::Tokenizer& tokenizer,
                                const std::vector<int64_t>& eos, AddSpecialTokens add) {
  TokenizedExample result;
  result.ids = text_prompt_tokens(text, add, tokenizer).ids;
  const bool ends =
      !result.ids.empty() && std::find(eos.begin(), eos.end(), result.ids.back()) != eos.end();
  if (!eos.empty() && !ends) {
    result.ids.push_back(eos.front());
  }
  return result;
}

void learn_from(TokenizedExample& example, std::size_t first) {
  example.learned.assign(example.ids.size(), false);
  std::fill(example.learned.begin() + static_cast<std::ptrdiff_t>(first), example.learned.end(),
            true);
}

TokenizedPair tokenize_whole_texts(const PreferenceExample& example,
                                   const engine::Tokenizer& tokenizer,
                                   const std::vector<int64_t>& eos, AddSpecialTokens add) {
  TokenizedPair pair{tokenize_whole(example.chosen.completion, tokenizer, eos, add),
                     tokenize_whole(example.rejected.completion, tokenizer, eos, add)};
  const auto& chosen = pair.chosen.ids;
  const auto& rejected = pair.rejected.ids;
  const auto differ = std::ranges::mismatch(chosen, rejected);
  const auto common = static_cast<std::size_t>(differ.in1 - chosen.begin());
  if (common == std::min(chosen.size(), rejected.size())) {
    throw std::runtime_error(
        "chosen and rejected begin alike up to the end of one, so there is no prompt to tell; "
        "expected a prompt of its own");
  }
  learn_from(pair.chosen, common);
  learn_from(pair.rejected, common);
  return pair;
}

// Leaves the assistant's earlier messages, which are part of the prompt, out of the completion.
void forget_prompt(TokenizedExample& example, const std::string& prompt,
                   const engine::Tokenizer& tokenizer) {
  const std::size_t within = tokens_within(tokenizer, example.ids, prompt);
  std::fill(example.learned.begin(), example.learned.begin() + static_cast<std::ptrdiff_t>(within),
            false);
  if (example.learned_tokens() == 0) {
    throw std::runtime_error(
        "the assistant says nothing after the messages that chosen and rejected have in common");
  }
}

}  // namespace

Conversation PreferenceExample::prompt() const {
  const nlohmann::ordered_json& messages = chosen.conversation.messages;
  Conversation prompt{nlohmann::ordered_json::array(), chosen.conversation.tools};
  prompt.messages.insert(prompt.messages.end(), messages.begin(),
                         messages.begin() + static_cast<std::ptrdiff_t>(prompt_messages));
  return prompt;
}

bool PreferenceExample::assistant_in_prompt() const {
  const Conversation common = prompt();
  return std::any_of(common.messages.begin(), common.messages.end(),
                     [](const auto& message) { return message.at("role") == "assistant"; });
}

bool PreferenceExample::assistant_answers() const {
  const auto answers = [&](const SftExample& side) {
    const auto& messages = side.conversation.messages;
    return prompt_messages > 0 && prompt_messages < messages.size() &&
           messages[prompt_messages].at("role") == "assistant";
  };
  return answers(chosen) && answers(rejected);
}

PreferenceExample parse_preference(const nlohmann::ordered_json& record, const std::string& place,
                                   const DataConfig& config) {
  PreferenceExample example;
  use_record(place, [&] {
    const Record& chosen = member(record, config.chosen_key, pair_forms(config));
    const Record& rejected = member(record, config.rejected_key, pair_forms(config));
    const Record& prompt = prompt_of_pair(record, config);
    const bool messages = chosen.is_array() && rejected.is_array();
    const bool texts = chosen.is_string() && rejected.is_string();
    const bool prompt_fits =
        prompt.is_null() || prompt.is_string() || (prompt.is_array() && messages);
    if (!(messages || texts) || !prompt_fits) {
      throw std::invalid_argument(
          "\"" + config.chosen_key + "\" is " + engine::kind_of(chosen) + ", \"" +
          config.rejected_key + "\" is " + engine::kind_of(rejected) +
          (prompt.is_null() ? ""
                            : ", \"" + config.prompt_key + "\" is " + engine::kind_of(prompt)) +
          "; " + pair_forms(config));
    }
    example.chosen = side_of_pair(record, prompt, chosen, config);
    example.rejected = side_of_pair(record, prompt, rejected, config);
    if (messages && prompt.is_string()) {
      check_repeated_prompt(prompt, chosen, config);
      check_repeated_prompt(prompt, rejected, config);
    }
    if (messages) {
      example.prompt_messages = prompt.is_array()
                                    ? prompt.size()
                                    : common_messages(example.chosen.conversation.messages,
                                                      example.rejected.conversation.messages);
    }
  });
  return example;
}

TokenizedPair tokenize_pair(const PreferenceExample& example, const engine::Tokenizer& tokenizer,
                            const std::vector<int64_t>& eos, ChatFormat& chat) {
  if (example.is_whole_text()) {
    return tokenize_whole_texts(example, tokenizer, eos, chat.add_special_tokens());
  }
  TokenizedPair pair{tokenize_example(example.chosen, tokenizer, eos, chat),
                     tokenize_example(example.rejected, tokenizer, eos, chat)};
  if (example.assistant_in_prompt()) {
    const std::string prompt = chat.prompt(example.prompt());
    forget_prompt(pair.chosen, prompt, tokenizer);
    forget_prompt(pair.rejected, prompt, tokenizer);
  }
  return pair;
}

sp::Document make_reward_document(const TokenizedExample& example) {
  sp::Document document;
  document.ids = example.ids;
  document.entries.add(static_cast<int64_t>(example.ids.size()) - 1, /*target_id=*/0);
  return document;
}

}  // namespace ringside::rl
