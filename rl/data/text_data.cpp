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
    } catch (const std::exception& error) {
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

std::vector<ChatMessage> messages_of(const json& list, const DataConfig& config) {
  if (config.chat_template == ChatTemplate::kNone) {
    throw std::invalid_argument("messages, but data.chat_template is none; expected chatml or llama3");
  }
  if (!list.is_array() || list.empty()) {
    throw std::invalid_argument("messages are " + std::string(list.is_array() ? "empty" : list.type_name()) +
                                ", expected an array of {\"role\", \"content\"}");
  }
  std::vector<ChatMessage> messages;
  for (const json& message : list) {
    for (const auto& [key, value] : message.items()) {
      // A tool call that is not rendered would be missing from the text without a word.
      if (key != "role" && key != "content" && !value.is_null()) {
        throw std::invalid_argument("a message has \"" + key + "\"; expected role and content alone");
      }
    }
    messages.push_back({message.at("role").get<std::string>(), message.at("content").get<std::string>()});
  }
  return messages;
}

}  // namespace

std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config) {
  std::vector<Prompt> prompts;
  for_each_line(path, [&](const json& line, int64_t number) {
    Prompt prompt;
    const json& text = line.at(config.prompt_key);
    prompt.prompt = text.is_array() ? chat_prompt(messages_of(text, config), config.chat_template) : text.get<std::string>();
    prompt.answer = line.contains(config.answer_key) ? text_of(line.at(config.answer_key)) : "";
    prompt.id = line.contains("id") ? text_of(line.at("id")) : std::to_string(number);
    prompts.push_back(std::move(prompt));
  });
  return prompts;
}

std::vector<SftExample> read_sft_examples(const std::filesystem::path& path, const DataConfig& config) {
  std::vector<SftExample> examples;
  for_each_line(path, [&](const json& line, int64_t number) {
    SftExample example;
    example.line = number;
    if (line.contains("messages")) {
      example.messages = messages_of(line.at("messages"), config);
    } else {
      example.prompt = line.at("prompt").get<std::string>();
      example.completion = line.at("completion").get<std::string>();
    }
    examples.push_back(std::move(example));
  });
  return examples;
}

}  // namespace ringside::rl
