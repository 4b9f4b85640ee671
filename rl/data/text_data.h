// Prompts and supervised examples out of JSONL files. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/chat.h"

namespace ringside::rl {

struct Prompt {
  std::string id;      // the line's "id", or its number
  std::string prompt;
  std::string answer;  // what a reward compares with; empty when the line has none
};

struct SftExample {
  std::string prompt;  // with completion, or else messages
  std::string completion;
  std::vector<ChatMessage> messages;
  int64_t line = 0;  // of the file, from 1
};

// One object a line, prompt and answer under config.prompt_key and config.answer_key. A prompt that is a list of chat
// messages is rendered by config.chat_template, up to where the assistant's turn begins. Throws std::runtime_error naming
// file and line: unreadable, bad JSON, neither a string nor messages under prompt_key, messages without a template, no line
// at all.
std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config);

// One {"prompt", "completion"} or {"messages"} object a line. Throws like read_prompts.
std::vector<SftExample> read_sft_examples(const std::filesystem::path& path, const DataConfig& config);

}  // namespace ringside::rl
