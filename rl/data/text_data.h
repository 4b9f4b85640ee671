// Prompts and supervised examples out of JSONL files. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

struct Prompt {
  std::string id;      // the line's "id", or its number
  std::string prompt;
  std::string answer;  // what a reward compares with; empty when the line has none
};

struct SftExample {
  std::string prompt;
  std::string completion;
};

// One object a line, prompt and answer under config.prompt_key and config.answer_key. Throws std::runtime_error naming
// file and line: unreadable, bad JSON, no string under prompt_key, no line at all.
std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config);

// One {"prompt", "completion"} object a line. Throws like read_prompts.
std::vector<SftExample> read_sft_examples(const std::filesystem::path& path);

}  // namespace ringside::rl
