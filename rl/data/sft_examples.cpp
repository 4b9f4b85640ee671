#include "rl/data/sft_examples.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::rl {
namespace {

void append(TokenizedExample& example, const std::vector<int64_t>& ids, std::size_t learned_from) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    example.ids.push_back(ids[i]);
    example.learned.push_back(i >= learned_from);
  }
}

// The first of `ids` that holds a byte from `begin` on, or ids.size(): the length of the longest
// run of tokens whose text is within the head. A token across the border belongs to the learned
// part.
std::size_t first_learned_token(const engine::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                                const std::string& text, std::size_t begin) {
  const std::string head = text.substr(0, begin);
  std::size_t count = 0;
  while (count < ids.size() &&
         head.starts_with(tokenizer.decode(std::span(ids).first(count + 1), false))) {
    ++count;
  }
  return count;
}

void append_piece(TokenizedExample& example, const ChatPiece& piece,
                  const engine::Tokenizer& tokenizer) {
  if (piece.marker &&
      (!tokenizer.token_id(piece.text) || tokenizer.encode(piece.text).size() != 1)) {
    throw std::runtime_error("data.chat_template writes " + piece.text +
                             ", which is not one token of the tokenizer");
  }
  const auto ids = tokenizer.encode(piece.text);
  if (piece.learned_from == std::string::npos) {
    append(example, ids, ids.size());
  } else {
    append(example, ids,
           piece.learned_from == 0
               ? 0
               : first_learned_token(tokenizer, ids, piece.text, piece.learned_from));
  }
}

TokenizedExample tokenize_completion(const SftExample& example, const engine::Tokenizer& tokenizer,
                                     const std::vector<int64_t>& eos) {
  TokenizedExample result;
  append(result, tokenizer.encode(example.prompt), std::string::npos);
  if (result.ids.empty()) {
    throw std::runtime_error(
        "the prompt is empty; the first completion token would have nothing to follow");
  }
  append(result, tokenizer.encode(example.completion), 0);
  if (!eos.empty() && std::find(eos.begin(), eos.end(), result.ids.back()) == eos.end()) {
    append(result, {eos.front()}, 0);
  }
  return result;
}

}  // namespace

int64_t TokenizedExample::learned_tokens() const {
  return std::count(learned.begin(), learned.end(), true);
}

TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatTemplate chat_template) {
  TokenizedExample result;
  if (example.messages.empty()) {
    result = tokenize_completion(example, tokenizer, eos);
  } else {
    for (const ChatPiece& piece : chat_pieces(example.messages, chat_template)) {
      append_piece(result, piece, tokenizer);
    }
  }
  if (result.learned_tokens() == 0) {
    throw std::runtime_error(
        "there is nothing to learn: no completion, or no message of role assistant");
  }
  result.line = example.line;
  return result;
}

SftSet scan_sft_set(const Config& config, const engine::Tokenizer& tokenizer,
                    const std::vector<int64_t>& eos) {
  const int64_t limit = config.train.tokens_per_micro_batch;
  const OnOverlong policy = config.data.on_overlong;
  auto data = scan_sft_examples(config.data.sft, config.data);
  SftSet set;
  set.problems = std::move(data.problems);
  set.lines = static_cast<int64_t>(data.items.size());
  for (const SftExample& text : data.items) {
    TokenizedExample example;
    try {
      example = tokenize_example(text, tokenizer, eos, config.data.chat_template);
    } catch (const std::exception& error) {
      set.problems.push_back(config.data.sft + ":" + std::to_string(text.line) + ": " +
                             error.what());
      continue;
    }
    // The last id is only a target and takes no place in the batch.
    const auto tokens = static_cast<int64_t>(example.ids.size()) - 1;
    if (tokens > limit) {
      ++set.overlong;
      if (policy == OnOverlong::kError) {
        set.problems.push_back(
            config.data.sft + ":" + std::to_string(text.line) + ": " + std::to_string(tokens) +
            " tokens, expected at most train.tokens_per_micro_batch = " + std::to_string(limit) +
            ", or data.on_overlong drop or truncate");
      }
      example.ids.resize(static_cast<std::size_t>(limit) + 1);
      example.learned.resize(static_cast<std::size_t>(limit) + 1);
      if (policy != OnOverlong::kTruncate || example.learned_tokens() == 0) {
        continue;
      }
    }
    set.examples.push_back(std::move(example));
  }
  if (set.examples.empty() && set.problems.empty()) {
    set.problems.push_back(config.data.sft +
                           ": no document is left: " + describe_overlong(set, config));
  }
  return set;
}

std::string describe_overlong(const SftSet& set, const Config& config) {
  if (set.overlong == 0) {
    return "";
  }
  return std::to_string(set.overlong) + " of " + std::to_string(set.lines) + " documents " +
         (set.overlong == 1 ? "is" : "are") + " longer than train.tokens_per_micro_batch = " +
         std::to_string(config.train.tokens_per_micro_batch) +
         (config.data.on_overlong == OnOverlong::kTruncate ? ": truncated" : ": dropped");
}

std::vector<TokenizedExample> tokenize_examples(const Config& config,
                                                const engine::Tokenizer& tokenizer,
                                                const std::vector<int64_t>& eos) {
  SftSet set = scan_sft_set(config, tokenizer, eos);
  if (!set.problems.empty()) {
    throw std::runtime_error(set.problems.front());
  }
  return std::move(set.examples);
}

sp::Document make_sft_document(const TokenizedExample& example) {
  sp::Document document;
  for (std::size_t t = 1; t < example.ids.size(); ++t) {
    if (example.learned[t]) {
      document.entries.add(static_cast<int64_t>(t) - 1, example.ids[t]);
    }
  }
  document.ids = example.ids;
  document.ids.pop_back();
  return document;
}

}  // namespace ringside::rl
