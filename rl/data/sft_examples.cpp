#include "rl/data/sft_examples.h"

#include <algorithm>
#include <stdexcept>

#include "rl/data/prompt_tokens.h"

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
                                     const std::vector<int64_t>& eos, AddSpecialTokens add) {
  TokenizedExample result;
  append(result, text_prompt_tokens(example.prompt, add, tokenizer).ids, std::string::npos);
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

// A conversation in the model's own template.
TokenizedExample tokenize_rendered(const RenderedChat& chat, const engine::Tokenizer& tokenizer) {
  TokenizedExample result;
  result.ids = tokenizer.encode(chat.text);
  result.learned.assign(result.ids.size(), false);
  if (tokenizer.decode(result.ids, false) != chat.text) {
    throw std::runtime_error(
        "the tokenizer changes the text of the conversation (a normalizer or an unknown "
        "character), so the assistant's tokens cannot be told; expected data.chat_template chatml "
        "or llama3");
  }
  for (const auto& [begin, end] : chat.learned) {
    const auto bytes = std::string_view(chat.text);
    const std::size_t first =
        tokens_within(tokenizer, result.ids, bytes.substr(0, static_cast<std::size_t>(begin)));
    std::size_t last =
        tokens_within(tokenizer, result.ids, bytes.substr(0, static_cast<std::size_t>(end)));
    // A token across the end belongs to it.
    const auto head = tokenizer.decode(std::span<const int64_t>(result.ids).first(last), false);
    last += static_cast<int64_t>(head.size()) < end ? 1 : 0;
    for (std::size_t i = std::max<std::size_t>(1, first); i < std::min(last, result.ids.size());
         ++i) {
      result.learned[i] = true;
    }
  }
  return result;
}

}  // namespace

// The answer grows with the count, so it is found by halving.
std::size_t tokens_within(const engine::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                          std::string_view head) {
  constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";
  const auto within = [&](std::size_t count) {
    std::string text = tokenizer.decode(std::span(ids).first(count), false);
    bool incomplete = false;
    while (text.ends_with(kIncomplete)) {
      text.resize(text.size() - kIncomplete.size());
      incomplete = true;
    }
    return head.starts_with(text) && (!incomplete || text.size() < head.size());
  };
  std::size_t low = 0;
  std::size_t high = ids.size();
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    if (within(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int64_t TokenizedExample::learned_tokens() const {
  return std::count(learned.begin(), learned.end(), true);
}

TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatFormat& chat) {
  TokenizedExample result;
  if (example.conversation.empty()) {
    result = tokenize_completion(example, tokenizer, eos, chat.add_special_tokens());
  } else if (chat.kind() == ChatTemplate::kModel) {
    result = tokenize_rendered(chat.render(example.conversation), tokenizer);
  } else {
    for (const ChatPiece& piece : chat_pieces(plain_messages(example.conversation), chat.kind())) {
      append_piece(result, piece, tokenizer);
    }
  }
  if (result.learned_tokens() == 0) {
    throw std::runtime_error(
        "there is nothing to learn: no completion, or no message of role assistant");
  }
  return result;
}

void place_images(TokenizedExample& example, std::span<const PromptImage> images,
                  const ImageRules& rules) {
  ExpandedPrompt expanded = expand_placeholders(example.ids, images, rules);
  std::vector<bool> learned;
  auto image = expanded.images.begin();
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    if (example.ids[i] != rules.image_token_id) {
      learned.push_back(example.learned[i]);
      continue;
    }
    if (example.learned[i]) {
      throw std::invalid_argument("token " + std::to_string(i) +
                                  " is the placeholder of an image in a completion; expected "
                                  "images in prompts alone");
    }
    learned.insert(learned.end(), image->grid.tokens(rules.processor.merge), false);
    ++image;
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    example.images.push_back({images[i].hash, expanded.images[i]});
  }
  example.ids = std::move(expanded.ids);
  example.learned = std::move(learned);
}

SftLimit sft_limit(const Config& config) {
  const int64_t tokens = config.train.tokens_per_micro_batch;
  if (const int64_t ids = config.data.max_length; ids > 0) {
    return {ids, 0, "data.max_length = " + std::to_string(ids)};
  }
  // Of the other tasks the last id is only a target.
  const int64_t targets = config.algorithm.task == Task::kRewardModel ? 0 : 1;
  return {tokens + targets, targets, "train.tokens_per_micro_batch = " + std::to_string(tokens)};
}

std::string overlong_document(const std::string& place, int64_t ids, const SftLimit& limit) {
  return place + ": " + std::to_string(ids - limit.uncounted) + " tokens, expected at most " +
         limit.key + ", or data.on_overlong drop or truncate";
}

sp::Document make_sft_document(const TokenizedExample& example, int64_t image_merge) {
  sp::Document document;
  for (std::size_t t = 1; t < example.ids.size(); ++t) {
    if (example.learned[t]) {
      document.entries.add(static_cast<int64_t>(t) - 1, example.ids[t]);
    }
  }
  document.ids = example.ids;
  document.ids.pop_back();
  if (image_merge > 0) {
    add_image_fields(document, example.images, image_merge);
  }
  return document;
}

}  // namespace ringside::rl
