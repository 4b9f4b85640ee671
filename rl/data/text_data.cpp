#include "rl/data/text_data.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/json/json_text.h"
#include "rl/data/json_lines.h"

namespace ringside::rl {
namespace {

using nlohmann::json;

// The member of a line's object. Throws std::runtime_error that lists those it has.
const json& member(const json& line, const std::string& key, const std::string& meaning) {
  if (line.contains(key)) {
    return line.at(key);
  }
  std::string names;
  for (const auto& [name, value] : line.items()) {
    names += (names.empty() ? "\"" : ", \"") + name + "\"";
  }
  throw std::runtime_error("has no \"" + key + "\" (" + meaning + "); it has " +
                           (names.empty() ? "nothing" : names));
}

std::string text_member(const json& line, const std::string& key, const std::string& meaning) {
  const json& value = member(line, key, meaning);
  if (!value.is_string()) {
    throw std::runtime_error("\"" + key + "\" is " + engine::kind_of(value) +
                             ", expected a string");
  }
  return value.get<std::string>();
}

// Rethrows a failure to use a line as "FILE:LINE: ...".
template <class Use>
void use_line(const std::filesystem::path& path, int64_t line_number, const Use& use) {
  const std::string where = path.string() + ":" + std::to_string(line_number) + ": ";
  try {
    use();
  } catch (const json::exception& error) {
    throw std::runtime_error(where + engine::json_problem(error));
  } catch (const std::exception& error) {
    throw std::runtime_error(where + error.what());
  }
}

// Calls visit(object, line number) for every line that is not empty. Its exception becomes a
// problem of the line.
std::vector<std::string> scan_lines(const std::filesystem::path& path,
                                    const std::function<void(const json&, int64_t)>& visit) {
  std::ifstream file = open_json_lines(path);
  std::vector<std::string> problems;
  std::string text;
  int64_t line_number = 0;
  int64_t lines = 0;
  while (std::getline(file, text)) {
    ++line_number;
    if (is_blank(text)) {
      continue;
    }
    ++lines;
    try {
      const json line = parse_json_line(text, path, line_number);
      use_line(path, line_number, [&] { visit(line, line_number); });
    } catch (const std::runtime_error& error) {
      problems.emplace_back(error.what());
    }
  }
  if (lines == 0) {
    throw std::runtime_error(path.string() + " holds no example");
  }
  return problems;
}

template <class Item>
std::vector<Item> all_or_throw(DataFile<Item> file) {
  if (!file.problems.empty()) {
    const std::size_t more = file.problems.size() - 1;
    throw std::runtime_error(
        file.problems.front() +
        (more > 0 ? " (and " + std::to_string(more) + " more lines like it)" : ""));
  }
  return std::move(file.items);
}

// A string unchanged; any other value as its JSON text, because ids and answers are often numbers.
std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<ChatMessage> messages_of(const json& list, const DataConfig& config) {
  if (config.chat_template == ChatTemplate::kNone) {
    throw std::invalid_argument(
        "messages, but data.chat_template is none; expected chatml or llama3");
  }
  if (!list.is_array() || list.empty()) {
    throw std::invalid_argument("messages are " +
                                std::string(list.is_array() ? "empty" : list.type_name()) +
                                ", expected an array of {\"role\", \"content\"}");
  }
  std::vector<ChatMessage> messages;
  for (const json& message : list) {
    if (!message.is_object()) {
      throw std::invalid_argument("a message is " + engine::kind_of(message) +
                                  ", expected {\"role\", \"content\"}");
    }
    for (const auto& [key, value] : message.items()) {
      // Otherwise a tool call that is not rendered would be missing from the text silently.
      if (key != "role" && key != "content" && !value.is_null()) {
        throw std::invalid_argument("a message has \"" + key +
                                    "\"; expected role and content alone");
      }
    }
    messages.push_back({text_member(message, "role", "of a chat message"),
                        text_member(message, "content", "of a chat message")});
  }
  return messages;
}

}  // namespace

DataFile<Prompt> scan_prompts(const std::filesystem::path& path, const DataConfig& config) {
  DataFile<Prompt> data;
  data.problems = scan_lines(path, [&](const json& line, int64_t number) {
    Prompt prompt;
    const json& text = member(line, config.prompt_key, "data.prompt_key");
    prompt.prompt = text.is_array() ? chat_prompt(messages_of(text, config), config.chat_template)
                                    : text_member(line, config.prompt_key, "data.prompt_key");
    const bool answered = line.contains(config.answer_key) && !line.at(config.answer_key).is_null();
    prompt.answer = answered ? text_of(line.at(config.answer_key)) : "";
    prompt.id = line.contains("id") ? text_of(line.at("id")) : std::to_string(number);
    prompt.line = number;
    data.items.push_back(std::move(prompt));
  });
  return data;
}

SftExample parse_sft_example(const std::string& text, const std::filesystem::path& path,
                             int64_t line_number, const DataConfig& config) {
  const json line = parse_json_line(text, path, line_number);
  SftExample example;
  use_line(path, line_number, [&] {
    if (line.contains("messages")) {
      example.messages = messages_of(line.at("messages"), config);
    } else {
      constexpr const char* kForms = "expected {\"prompt\", \"completion\"} or {\"messages\"}";
      example.prompt = text_member(line, "prompt", kForms);
      example.completion = text_member(line, "completion", kForms);
    }
  });
  return example;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& path, const DataConfig& config) {
  return all_or_throw(scan_prompts(path, config));
}

}  // namespace ringside::rl
