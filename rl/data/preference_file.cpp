#include "rl/data/preference_file.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

// A policy is compared on completions of one prompt; a reward model judges whole documents.
void check_prompt(const PreferenceExample& example, const TokenizedPair& pair) {
  if (example.is_whole_text() && pair.chosen.learned.front()) {
    throw std::runtime_error(
        "chosen and rejected differ from their first token on, so they have no prompt; expected a "
        "prompt of its own");
  }
  if (!example.is_whole_text() && !example.chosen.conversation.empty() &&
      !example.assistant_answers()) {
    throw std::runtime_error(
        "the message after those that chosen and rejected have in common is not the assistant's, "
        "so they answer different prompts");
  }
}

}  // namespace

PreferenceFile::PreferenceFile(const std::string& files, const Config& config,
                               const engine::Tokenizer& tokenizer, std::vector<int64_t> eos)
    : records_(files),
      chat_(config),
      data_(config.data),
      task_(config.algorithm.task),
      limit_(sft_limit(config)),
      tokenizer_(tokenizer),
      eos_(std::move(eos)) {}

TokenizedPair PreferenceFile::tokenize(int64_t i) {
  const std::string place = records_.place(i);
  const PreferenceExample example = parse_preference(records_.record(i), place, data_);
  try {
    TokenizedPair pair = tokenize_pair(example, tokenizer_, eos_, chat_);
    if (task_ == Task::kDpo) {
      check_prompt(example, pair);
    }
    return pair;
  } catch (const ChatUnavailable&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ": " + error.what());
  }
}

PreferenceFile::Read PreferenceFile::read(int64_t i) {
  Read read;
  read.example = tokenize(i);
  for (TokenizedExample* example : {&read.example->chosen, &read.example->rejected}) {
    const auto ids = static_cast<int64_t>(example->ids.size());
    if (ids <= limit_.ids) {
      continue;
    }
    read.overlong = true;
    if (data_.on_overlong == OnOverlong::kError) {
      throw std::runtime_error(overlong_document(records_.place(i), ids, limit_));
    }
    example->ids.resize(static_cast<std::size_t>(limit_.ids));
    example->learned.resize(static_cast<std::size_t>(limit_.ids));
  }
  const bool nothing_left =
      read.example->chosen.learned_tokens() == 0 || read.example->rejected.learned_tokens() == 0;
  if (read.overlong && (data_.on_overlong == OnOverlong::kDrop || nothing_left)) {
    read.example.reset();
  }
  return read;
}

}  // namespace ringside::rl
