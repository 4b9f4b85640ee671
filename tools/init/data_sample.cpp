#include "tools/init/data_sample.h"

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "rl/data/record_set.h"
#include "rl/rewards/reward.h"

namespace ringside::tools {
namespace {

using json = nlohmann::ordered_json;

constexpr std::array kPromptNames = {"prompt",      "question", "problem",
                                     "instruction", "input",    "query"};
constexpr std::array kAnswerNames = {"answer",       "solution", "label", "target",
                                     "ground_truth", "output",   "tests"};
// verl's form: an object with the answer.
constexpr const char* kVerlObject = "reward_model";
constexpr const char* kVerlAnswer = "ground_truth";

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

// The reward that suits an answer; nullptr: there is none.
std::string task_of(const json* answer) {
  if (answer == nullptr) {
    return "length";
  }
  const json& value = *answer;
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
  rl::RecordSet records(file.string());
  const json line = records.record(0);
  const std::string prompt = first_name(line, kPromptNames);
  const std::string answer = first_name(line, kAnswerNames);
  const bool asks = !prompt.empty() && !answer.empty();  // beside solutions that others wrote
  sample.supervised = !asks && (line.contains("messages") || line.contains("completion"));
  if (sample.supervised) {
    sample.messages = line.contains("messages");
    sample.task = "sft";
    return sample;
  }
  if (prompt.empty()) {
    throw std::runtime_error(records.place(0) +
                             ": has no \"prompt\", \"question\", \"problem\" or \"messages\"; name "
                             "the field by data.prompt_key in a recipe of your own");
  }
  sample.prompt_key = prompt;
  sample.messages = line.at(prompt).is_array();
  sample.asks_for_box = line.at(prompt).dump().find("boxed") != std::string::npos;
  const bool of_verl = line.contains(kVerlObject) && line.at(kVerlObject).is_object() &&
                       line.at(kVerlObject).contains(kVerlAnswer);
  if (of_verl) {
    sample.answer_key = std::string(kVerlObject) + "." + kVerlAnswer;
    sample.task = task_of(&line.at(kVerlObject).at(kVerlAnswer));
  } else {
    sample.answer_key = answer.empty() ? sample.answer_key : answer;
    sample.task = task_of(answer.empty() ? nullptr : &line.at(answer));
  }
  return sample;
}

}  // namespace ringside::tools
