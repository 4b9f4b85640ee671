// Prompts and supervised examples from JSONL files. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/chat.h"

namespace ringside::rl {

struct Prompt {
  std::string id;  // the line's "id", or its number
  std::string prompt;
  std::string answer;  // the reference answer for rewards; empty if the line has none
  int64_t line = 0;    // of the file, from 1
};

struct SftExample {
  std::string prompt;  // with completion, or else messages
  std::string completion;
  std::vector<ChatMessage> messages;
};

// The items of a file, and a sentence "FILE:LINE: ..." for each line that cannot be used.
template <class Item>
struct DataFile {
  std::vector<Item> items;
  std::vector<std::string> problems;
};

// Reads one JSON object per line, with prompt and answer under config.prompt_key and
// config.answer_key. A prompt that is a list of chat messages is rendered by config.chat_template,
// up to the beginning of the assistant's turn. A line is a problem if it is no JSON object, has
// neither a string nor messages under prompt_key, or has messages without a template.
// Throws: std::runtime_error naming the file when it cannot be read or has no line.
DataFile<Prompt> scan_prompts(const std::filesystem::path& path, const DataConfig& config);

// The items of scan_prompts.
// Throws: std::runtime_error for the first problem too.
std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config);

// The example of one line: a {"prompt", "completion"} or {"messages"} object.
// Throws: std::runtime_error "FILE:LINE: ..." when it is neither, or has messages without a
// template.
SftExample parse_sft_example(const std::string& text, const std::filesystem::path& path,
                             int64_t line_number, const DataConfig& config);

}  // namespace ringside::rl
