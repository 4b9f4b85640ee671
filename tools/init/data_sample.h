// First record of a data file, and what it says about the task.
#pragma once

#include <filesystem>
#include <string>

namespace ringside::tools {

struct DataSample {
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";
  bool supervised = false;    // has completions or conversations to learn
  bool messages = false;      // prompts are lists of chat messages
  bool asks_for_box = false;  // the first prompt mentions \boxed
  std::string task;           // the reward that suits the answer, or "sft"
};

// Looks at the first record of a file of JSON Lines, of a JSON array or of Parquet.
// Throws: std::runtime_error naming file and record when the file cannot be read, or the record has
// neither a prompt nor a conversation under a known name.
DataSample sample_data(const std::filesystem::path& file);

}  // namespace ringside::tools
