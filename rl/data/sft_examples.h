// Supervised examples as token ids with a mask of learned tokens. Torch-free.
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
  std::vector<bool> learned;  // one per id; the first is false, because nothing precedes it
  int64_t line = 0;
  int64_t learned_tokens() const;
};

// Tokenizes one example. {"prompt", "completion"}: the completion is learned. It ends with an
// end-of-sequence id; eos.front() is added if the text does not end with one. {"messages"}: the ids
// of the rendered text as one call of the tokenizer gives them. Every token that holds a byte of an
// assistant's content, and its end marker, is learned, as in transformers' assistant mask.
// Throws: std::runtime_error for an empty prompt, nothing to learn, or a template marker that is no
// token of the tokenizer.
TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatTemplate chat_template);

// The examples of config.data.sft that are trained on; the same on every rank.
struct SftSet {
  std::vector<TokenizedExample> examples;
  std::vector<std::string>
      problems;       // one sentence each, with file and line; with any, a run does not start
  int64_t lines = 0;  // documents in the file
  // Documents longer than train.tokens_per_micro_batch: data.on_overlong decides.
  int64_t overlong = 0;
};

// Reads and tokenizes the examples. With on_overlong truncate, an overlong document is truncated to
// the tokens that fit, and dropped if no learned token is left.
// Throws: std::runtime_error naming the file when it cannot be read or has no line.
SftSet scan_sft_set(const Config& config, const engine::Tokenizer& tokenizer,
                    const std::vector<int64_t>& eos);

// "3 of 900 documents are longer than train.tokens_per_micro_batch = 512: dropped"; "" when none
// is.
std::string describe_overlong(const SftSet& set, const Config& config);

// The examples of scan_sft_set.
// Throws: std::runtime_error for its first problem too.
std::vector<TokenizedExample> tokenize_examples(const Config& config,
                                                const engine::Tokenizer& tokenizer,
                                                const std::vector<int64_t>& eos);

// A document with a loss entry for each learned token, at the token before it. The last id is only
// a target.
sp::Document make_sft_document(const TokenizedExample& example);

}  // namespace ringside::rl
