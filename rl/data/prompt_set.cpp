#include "rl/data/prompt_set.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "rl/data/prompt_tokens.h"

namespace ringside::rl {
namespace {

std::string tokens_of(int64_t count) {
  return std::to_string(count) + (count == 1 ? " token" : " tokens");
}

std::string limit_text(const PromptRules& rules) {
  return "rollout.max_prompt_tokens = " + std::to_string(rules.max_tokens);
}

PromptTokens encoded(const Prompt& prompt, const PromptRules& rules,
                     const engine::Tokenizer& tokenizer) {
  const auto add = prompt.is_chat ? AddSpecialTokens::kFalse : rules.add_special_tokens;
  return text_prompt_tokens(prompt.prompt, add, tokenizer);
}

// Whether the template is written in this program, and so are its markers.
bool has_markers(ChatTemplate chat_template) {
  return chat_template == ChatTemplate::kChatml || chat_template == ChatTemplate::kLlama3;
}

// The first prompt that was rendered by the template, recognised by its first marker in the text.
const Prompt* first_rendered(const std::vector<Prompt>& prompts, ChatTemplate chat_template) {
  if (!has_markers(chat_template)) {
    return nullptr;
  }
  const std::string marker = chat_pieces({{"user", ""}}, chat_template).front().text;
  const auto found = std::find_if(prompts.begin(), prompts.end(), [&](const Prompt& prompt) {
    return prompt.prompt.starts_with(marker);
  });
  return found == prompts.end() ? nullptr : &*found;
}

// The prompt's tokens, those of its images included.
PromptTokens expanded(const Prompt& prompt, const PromptRules& rules,
                      const engine::Tokenizer& tokenizer) {
  PromptTokens tokens = encoded(prompt, rules, tokenizer);
  if (rules.images) {
    tokens.ids = expand_placeholders(tokens.ids, prompt.images, *rules.images).ids;
  }
  return tokens;
}

bool any_has_images(const std::vector<Prompt>& prompts) {
  return std::any_of(prompts.begin(), prompts.end(),
                     [](const Prompt& prompt) { return !prompt.images.empty(); });
}

// Counts the prompts that are left of each entry.
void count_parts(PromptSet& set) {
  for (OrderPart& part : set.parts) {
    part.size = 0;
  }
  for (const Prompt& prompt : set.prompts) {
    ++set.parts[prompt.part].size;
  }
}

}  // namespace

PromptRules prompt_rules(const Config& config) {
  PromptRules rules{config.rollout.max_prompt_tokens, config.data.on_overlong,
                    config.data.add_special_tokens};
  if (!config.data.image_key.empty()) {
    rules.images = read_image_rules(config);
  }
  return rules;
}

std::string marker_problem(ChatTemplate chat_template, const engine::Tokenizer& tokenizer) {
  if (!has_markers(chat_template)) {
    return "";
  }
  for (const ChatPiece& piece : chat_pieces({{"user", ""}}, chat_template)) {
    if (piece.marker &&
        (!tokenizer.token_id(piece.text) || tokenizer.encode(piece.text).size() != 1)) {
      return "data.chat_template writes " + piece.text +
             ", which is not one token of the tokenizer";
    }
  }
  return "";
}

PromptSet scan_prompt_set(const std::string& files, const Config& config,
                          const engine::Tokenizer& tokenizer) {
  const PromptRules rules = prompt_rules(config);
  auto data = scan_prompts(files, config);
  PromptSet set;
  set.problems = std::move(data.problems);
  set.parts = std::move(data.parts);
  set.lines = static_cast<int64_t>(data.items.size());
  if (const Prompt* rendered = first_rendered(data.items, config.data.chat_template)) {
    const std::string wrong = marker_problem(config.data.chat_template, tokenizer);
    if (!wrong.empty()) {
      set.problems.push_back(rendered->place + ": " + wrong);
    }
  }
  set.images = any_has_images(data.items) ? rules.images : std::nullopt;
  std::string first_overlong;
  for (Prompt& prompt : data.items) {
    int64_t length = 0;
    try {
      length = std::ssize(expanded(prompt, rules, tokenizer).ids);
    } catch (const std::invalid_argument& error) {
      set.problems.push_back(prompt.place + ": " + error.what());
      continue;
    }
    if (length == 0) {
      set.problems.push_back(prompt.place + ": the prompt has 0 tokens, expected at least 1");
      continue;
    }
    if (length > rules.max_tokens) {
      first_overlong += set.overlong++ == 0 ? prompt.place + " has " + tokens_of(length) : "";
      if (rules.on_overlong != OnOverlong::kTruncate) {
        continue;
      }
      if (!prompt.images.empty()) {
        set.problems.push_back(prompt.place + ": a prompt with images has " + tokens_of(length) +
                               ", more than " + limit_text(rules) +
                               ", and cannot be truncated; expected data.on_overlong drop, or a "
                               "lower data.max_image_pixels");
        continue;
      }
    }
    set.longest = std::max(set.longest, std::min(length, rules.max_tokens));
    set.prompts.push_back(std::move(prompt));
  }
  if (set.overlong > 0 && rules.on_overlong == OnOverlong::kError) {
    set.problems.push_back(
        describe_overlong(set, rules) + " (the first at " + first_overlong +
        "); expected a higher rollout.max_prompt_tokens, or data.on_overlong drop or truncate");
  } else if (set.prompts.empty() && set.problems.empty()) {
    set.problems.push_back("no prompt is left: " + describe_overlong(set, rules));
  }
  count_parts(set);
  for (const OrderPart& part : set.parts) {
    if (part.weight > 0 && part.size == 0 && set.problems.empty()) {
      set.problems.push_back("a data file with a weight has no prompt left: " +
                             describe_overlong(set, rules));
    }
  }
  return set;
}

PromptSet load_prompt_set(const std::string& files, const Config& config,
                          const engine::Tokenizer& tokenizer) {
  PromptSet set = scan_prompt_set(files, config, tokenizer);
  if (!set.problems.empty()) {
    throw std::runtime_error(set.problems.front());
  }
  return set;
}

std::string describe_overlong(const PromptSet& set, const PromptRules& rules) {
  if (set.overlong == 0) {
    return "";
  }
  const std::string text = std::to_string(set.overlong) + " of " + std::to_string(set.lines) +
                           " prompts " + (set.overlong == 1 ? "is" : "are") + " longer than " +
                           limit_text(rules);
  switch (rules.on_overlong) {
    case OnOverlong::kError:
      return text;
    case OnOverlong::kDrop:
      return text + ": dropped";
    case OnOverlong::kTruncate:
      return text + ": truncated to the last tokens";
  }
  throw std::invalid_argument("unknown data.on_overlong");
}

std::vector<int64_t> prompt_ids(const Prompt& prompt, const PromptRules& rules,
                                const engine::Tokenizer& tokenizer) {
  auto [ids, special] = expanded(prompt, rules, tokenizer);
  const auto length = static_cast<int64_t>(ids.size());
  const bool cut = length > rules.max_tokens && rules.on_overlong == OnOverlong::kTruncate &&
                   prompt.images.empty();
  if (length < 1 || (length > rules.max_tokens && !cut)) {
    throw std::runtime_error("prompt " + prompt.id + " has " + tokens_of(length) +
                             ", expected 1 to " + limit_text(rules));
  }
  if (cut) {
    const auto begin = ids.begin() + std::min(special, rules.max_tokens);
    ids.erase(begin, begin + (length - rules.max_tokens));
  }
  return ids;
}

}  // namespace ringside::rl
