// Supervised examples as tokens: which ids, and which of them are learned. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/text_data.h"
#include "sp/batch/document.h"

namespace ringside::rl {

struct TokenizedExample {
  std::vector<int64_t> ids;
  std::vector<bool> learned;  // one per id; the first is false, nothing comes before it
  int64_t line = 0;
  int64_t learned_tokens() const;
};

// {"prompt", "completion"}: the completion is learned, ending with an end-of-sequence id
// (eos.front() is added where the text does not bring one). {"messages"}: the ids of the rendered
// text as one call of the tokenizer gives them; every token that holds a byte of an assistant's
// content, and its end marker, is learned, as transformers' assistant mask has it. Throws
// std::runtime_error: an empty prompt, nothing to learn, a marker of the template that is no token
// of the tokenizer.
TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatTemplate chat_template);

// The examples of config.data.sft that are trained on; the same on every rank.
struct SftSet {
  std::vector<TokenizedExample> examples;
  std::vector<std::string>
      problems;       // a sentence each, with file and line; a run does not start with any
  int64_t lines = 0;  // documents in the file
  int64_t overlong =
      0;  // of these, longer than train.tokens_per_micro_batch: data.on_overlong decides
};

// A document is cut behind what fits; one that has nothing to learn left is dropped.
// Throws std::runtime_error naming the file when it cannot be read or has no line at all.
SftSet scan_sft_set(const Config& config, const engine::Tokenizer& tokenizer,
                    const std::vector<int64_t>& eos);

// "3 of 900 documents are longer than train.tokens_per_micro_batch = 512: dropped"; "" when none
// is.
std::string describe_overlong(const SftSet& set, const Config& config);

// The examples of scan_sft_set. Throws std::runtime_error for its first problem too.
std::vector<TokenizedExample> tokenize_examples(const Config& config,
                                                const engine::Tokenizer& tokenizer,
                                                const std::vector<int64_t>& eos);

// A loss entry for each learned token, at the token before it; the last id is only ever a target.
sp::Document make_sft_document(const TokenizedExample& example);

}  // namespace ringside::rl
