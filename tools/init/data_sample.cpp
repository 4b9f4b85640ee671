#include "tools/init/data_sample.h"

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/data/json_lines.h"
#include "rl/rewards/reward.h"

namespace ringside::tools {
namespace {

using nlohmann::json;

constexpr std::array kPromptNames = {"prompt",      "question", "problem",
                                     "instruction", "input",    "query"};
constexpr std::array kAnswerNames = {"answer",       "solution", "label", "target",
                                     "ground_truth", "output",   "tests"};

// The first of `names` that the line has, or "".
template <std::size_t N>
std::string first_name(const json& line, const std::array<const char*, N>& names) {
  for (const char* name : names) {
    if (line.contains(name)) {
      return name;
    }
  }
  return "";
}

std::string task_of(const json& line, const std::string& answer_key) {
  if (answer_key.empty()) {
    return "length";
  }
  const json& value = line.at(answer_key);
  if (value.is_array() || value.is_object()) {
    return value.is_object() && value.contains("type") ? "json_schema" : "code_tests";
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find("assert ") != std::string::npos) {
    return "code_tests";
  }
  if (text.find_first_of("0123456789\\") != std::string::npos) {
    return "math_answer";
  }
  return text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z' ? "multiple_choice" : "exact_match";
}

}  // namespace

DataSample sample_data(const std::filesystem::path& file) {
  DataSample sample;
  if (file.extension() != ".jsonl") {
    sample.task = "math_answer";
    return sample;
  }
  std::ifstream in = rl::open_json_lines(file);
  std::string text;
  int64_t number = 0;
  do {
    ++number;
  } while (std::getline(in, text) && rl::is_blank(text));
  const json line = rl::parse_json_line(text, file, number);
  const std::string prompt = first_name(line, kPromptNames);
  sample.messages = line.contains("messages") || (!prompt.empty() && line.at(prompt).is_array());
  sample.supervised = line.contains("messages") || line.contains("completion");
  if (sample.supervised) {
    sample.task = "sft";
    return sample;
  }
  if (prompt.empty()) {
    throw std::runtime_error(file.string() + ":" + std::to_string(number) +
                             ": has no \"prompt\", \"question\", \"problem\" or \"messages\"; name "
                             "the field by data.prompt_key in a recipe of your own");
  }
  sample.prompt_key = prompt;
  const std::string answer = first_name(line, kAnswerNames);
  sample.task = task_of(line, answer);
  sample.answer_key = answer.empty() ? sample.answer_key : answer;
  return sample;
}

}  // namespace ringside::tools
