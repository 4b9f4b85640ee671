// First line of a data file, and what it says about the task.
#pragma once

#include <filesystem>
#include <string>

namespace ringside::tools {

struct DataSample {
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";
  bool supervised = false;  // has completions or conversations to learn
  bool messages = false;    // prompts are lists of chat messages
  std::string task;         // the reward that suits the answer, or "sft"
};

// Looks at the first line of a JSONL file. For a file of another form the sample is the default one
// with task math_answer.
// Throws: std::runtime_error naming file and line when the line is no JSON object, or has neither a
// prompt nor a conversation under a known name.
DataSample sample_data(const std::filesystem::path& file);

}  // namespace ringside::tools
