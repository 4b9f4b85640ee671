// Pairs of a chosen and a rejected document, as records and as token ids. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/sft_examples.h"
#include "rl/data/text_data.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// A chosen and a rejected document. Texts have a prompt, or else their completions are whole texts.
// Conversations begin with the same messages, the prompt.
struct PreferenceExample {
  SftExample chosen;
  SftExample rejected;
  std::size_t prompt_messages = 0;  // of conversations

  bool is_whole_text() const { return chosen.conversation.empty() && chosen.prompt.empty(); }
  // The messages in common, with the tools.
  Conversation prompt() const;
  // Whether one of those is the assistant's.
  bool assistant_in_prompt() const;
  // Whether both conversations go on with the assistant.
  bool assistant_answers() const;
};

// The pair of one record: under data.chosen_key and data.rejected_key two texts or two lists of
// messages, of the forms that TRL reads. With a prompt under data.prompt_key of the same kind they
// are what follows it. Without one they are whole: messages that both begin with are the prompt.
// A prompt that is text beside lists of messages must be their first message of a user.
// Throws: std::runtime_error "PLACE: ..." when it has another form, or is a conversation without a
// template.
PreferenceExample parse_preference(const nlohmann::ordered_json& record, const std::string& place,
                                   const DataConfig& config);

// The two documents of a pair. `learned` marks the completion, whose log-probs count.
struct TokenizedPair {
  TokenizedExample chosen;
  TokenizedExample rejected;
};

// Tokenizes the documents of a pair as tokenize_example() does, each with its prompt. In
// conversations the completion is what the assistant says after the messages that both have in
// common. Whole texts are tokenized as such, with an end-of-sequence id; the completion begins
// where their ids differ.
// Throws: std::runtime_error for whole texts whose ids are the same, and as tokenize_example().
TokenizedPair tokenize_pair(const PreferenceExample& example, const engine::Tokenizer& tokenizer,
                            const std::vector<int64_t>& eos, ChatFormat& chat);

// A document of a reward model, which reads the last token: one entry, at that token. Its target
// means nothing.
sp::Document make_reward_document(const TokenizedExample& example);

}  // namespace ringside::rl
