#include "rl/data/text_data.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ringside::rl {
namespace {

using nlohmann::json;

// Calls visit(object, line number) for every line; errors get file and line.
void for_each_line(const std::filesystem::path& path, const std::function<void(const json&, int64_t)>& visit) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error("cannot read " + (path.empty() ? std::string("data: no file is configured") : path.string()));
  }
  std::string text;
  int64_t line_number = 0;
  int64_t objects = 0;
  while (std::getline(file, text)) {
    ++line_number;
    if (text.empty()) {
      continue;
    }
    try {
      visit(json::parse(text), line_number);
    } catch (const json::exception& error) {
      throw std::runtime_error(path.string() + ":" + std::to_string(line_number) + ": " + error.what());
    }
    ++objects;
  }
  if (objects == 0) {
    throw std::runtime_error(path.string() + " holds no example");
  }
}

// A string as it is, anything else as its JSON text: ids and answers are often numbers.
std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config) {
  std::vector<Prompt> prompts;
  for_each_line(path, [&](const json& line, int64_t number) {
    Prompt prompt;
    prompt.prompt = line.at(config.prompt_key).get<std::string>();
    prompt.answer = line.contains(config.answer_key) ? text_of(line.at(config.answer_key)) : "";
    prompt.id = line.contains("id") ? text_of(line.at("id")) : std::to_string(number);
    prompts.push_back(std::move(prompt));
  });
  return prompts;
}

std::vector<SftExample> read_sft_examples(const std::filesystem::path& path) {
  std::vector<SftExample> examples;
  for_each_line(path, [&](const json& line, int64_t) {
    examples.push_back({line.at("prompt").get<std::string>(), line.at("completion").get<std::string>()});
  });
  return examples;
}

}  // namespace ringside::rl
