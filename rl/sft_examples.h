// Supervised examples as tokens: which ids, and which of them are learned. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/text_data.h"
#include "sp/collator/document.h"

namespace ringside::rl {

struct TokenizedExample {
  std::vector<int64_t> ids;
  std::vector<bool> learned;  // one per id; the first is false, nothing comes before it
  int64_t line = 0;
  int64_t learned_tokens() const;
};

// {"prompt", "completion"}: the completion is learned, ending with an end-of-sequence id (eos.front() is added where the text
// does not bring one). {"messages"}: the ids of the rendered text as one call of the tokenizer gives them; every token that
// holds a byte of an assistant's content, and its end marker, is learned, as transformers' assistant mask has it. Throws
// std::runtime_error naming the line: an empty prompt, nothing to learn, a marker of the template that is no token of the
// tokenizer.
TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatTemplate chat_template);

// All examples of config.data.sft. Throws like read_sft_examples and tokenize_example, with the file's name, and
// std::runtime_error for a document longer than train.tokens_per_micro_batch.
std::vector<TokenizedExample> tokenize_examples(const Config& config, const engine::Tokenizer& tokenizer,
                                                const std::vector<int64_t>& eos);

// A loss entry of that weight for each learned token, at the token before it; the last id is only ever a target.
sp::Document make_sft_document(const TokenizedExample& example, double weight);

}  // namespace ringside::rl
