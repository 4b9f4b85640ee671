#include "rl/data/chat_format.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "engine/json/json_text.h"
#include "rl/python/python_process.h"
#include "rl/python/scripts.h"

namespace ringside::rl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json file_or_empty(const fs::path& path) {
  return fs::exists(path) ? engine::read_json_file(path) : json::object();
}

std::string template_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return text.str();
}

// A token is its text, or an object that holds it.
void add_tokens(const json& from, json& tokens) {
  for (const auto& [name, value] : from.items()) {
    const json& text = value.is_object() && value.contains("content") ? value.at("content") : value;
    if (name.ends_with("_token") && text.is_string()) {
      tokens[name] = text;
    }
  }
}

json read_options(const std::string& text) {
  if (text.empty()) {
    return json::object();
  }
  const json options = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!options.is_object()) {
    throw std::runtime_error("data.template_options is no JSON object: " + text);
  }
  return options;
}

std::string text_part(const nlohmann::ordered_json& message, const char* key) {
  if (!message.contains(key)) {
    throw std::invalid_argument(std::string("a message has no \"") + key +
                                "\"; expected role and content");
  }
  if (!message.at(key).is_string()) {
    throw std::invalid_argument(std::string("\"") + key + "\" of a message is " +
                                engine::kind_of(message.at(key)) +
                                ", expected a string; data.chat_template model takes other forms");
  }
  return message.at(key).get<std::string>();
}

}  // namespace

nlohmann::json model_chat_templates(const fs::path& model) {
  json templates = json::object();
  if (fs::exists(model / "chat_template.jinja")) {
    templates["default"] = template_text(model / "chat_template.jinja");
    if (fs::is_directory(model / "additional_chat_templates")) {
      for (const auto& entry : fs::directory_iterator(model / "additional_chat_templates")) {
        templates[entry.path().stem().string()] = template_text(entry.path());
      }
    }
    return templates;
  }
  const json config = file_or_empty(model / "tokenizer_config.json");
  const json value = config.contains("chat_template") ? config.at("chat_template") : json();
  if (value.is_string()) {
    templates["default"] = value;
  } else if (value.is_array()) {  // [{"name", "template"}]
    for (const json& one : value) {
      templates[one.at("name").get<std::string>()] = one.at("template");
    }
  }
  if (!templates.contains("default")) {
    throw std::runtime_error(
        "data.chat_template is model, but " + model.string() +
        " has no default chat template, neither chat_template.jinja nor \"chat_template\" in "
        "tokenizer_config.json; base models often have none: expected chatml or llama3, or a "
        "template of the instruct model");
  }
  return templates;
}

nlohmann::json model_special_tokens(const fs::path& model) {
  json tokens = json::object();
  add_tokens(file_or_empty(model / "special_tokens_map.json"), tokens);
  add_tokens(file_or_empty(model / "tokenizer_config.json"), tokens);
  return tokens;
}

ChatFormat::ChatFormat(const Config& config, double timeout_s)
    : data_(config.data), model_path_(config.model.path), timeout_s_(timeout_s) {}
ChatFormat::~ChatFormat() = default;
ChatFormat::ChatFormat(ChatFormat&&) noexcept = default;

void ChatFormat::start() {
  try {
    start_process();
  } catch (const std::exception& error) {
    throw ChatUnavailable(error.what());
  }
}

void ChatFormat::start_process() {
  json variables = model_special_tokens(model_path_);
  const json options = read_options(data_.template_options);
  variables.update(options);
  json option_names = json::array();
  for (const auto& [name, value] : options.items()) {
    option_names.push_back(name);
  }
  PythonProgram program;
  program.script = chat_template_script();
  program.setup = {{"templates", model_chat_templates(model_path_)},
                   {"variables", variables},
                   {"options", option_names}};
  program.timeout_s = timeout_s_;
  std::string problem;
  for (const char* command : {"python3", "/usr/bin/python3"}) {
    program.command = command;
    auto process = std::make_unique<PythonProcess>(program);
    try {
      process->start();
      process_ = std::move(process);
      return;
    } catch (const std::runtime_error& error) {
      problem = problem.empty() ? error.what() : problem;  // that of the usual interpreter
    }
  }
  throw std::runtime_error("the chat template of " + model_path_ + " cannot be used: " + problem);
}

nlohmann::json ChatFormat::ask(const Conversation& conversation, const char* form) {
  if (process_ == nullptr) {
    start();
  }
  try {
    return process_->ask(
        {{"messages", conversation.messages}, {"tools", conversation.tools}, {"form", form}});
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the chat template of " + model_path_ +
                             " cannot render the messages: " + error.what());
  }
}

std::string ChatFormat::prompt(const Conversation& conversation) {
  if (data_.chat_template != ChatTemplate::kModel) {
    return chat_prompt(plain_messages(conversation), data_.chat_template);
  }
  return ask(conversation, "prompt").at("text").get<std::string>();
}

std::string ChatFormat::text(const Conversation& conversation) {
  if (data_.chat_template == ChatTemplate::kModel) {
    return ask(conversation, "text").at("text").get<std::string>();
  }
  std::string text;
  for (const ChatPiece& piece : chat_pieces(plain_messages(conversation), data_.chat_template)) {
    text += piece.text;
  }
  return text;
}

std::optional<std::string> ChatFormat::closing(const nlohmann::ordered_json& tools) {
  const std::string reply = "r1ng5ide";  // in no template
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "a"}},
                                           {{"role", "assistant"}, {"content", reply}}};
  std::string rendered;
  try {
    rendered = text({messages, tools});
  } catch (const std::runtime_error&) {  // the template's
    return std::nullopt;
  }
  const std::size_t found = rendered.rfind(reply);
  return found == std::string::npos ? std::nullopt
                                    : std::optional(rendered.substr(found + reply.size()));
}

RenderedChat ChatFormat::render(const Conversation& conversation) {
  const json answer = ask(conversation, "spans");
  return {answer.at("text").get<std::string>(),
          answer.at("spans").get<std::vector<std::pair<int64_t, int64_t>>>()};
}

std::vector<ChatMessage> plain_messages(const Conversation& conversation) {
  if (!conversation.tools.is_null()) {
    throw std::invalid_argument("has \"tools\", which only data.chat_template model renders");
  }
  std::vector<ChatMessage> messages;
  for (const auto& message : conversation.messages) {
    for (const auto& [key, value] : message.items()) {
      // Otherwise a tool call that is not rendered would be missing from the text silently.
      if (key != "role" && key != "content" && !value.is_null()) {
        throw std::invalid_argument("a message has \"" + key +
                                    "\"; expected role and content alone, or data.chat_template "
                                    "model");
      }
    }
    messages.push_back({text_part(message, "role"), text_part(message, "content")});
  }
  return messages;
}

}  // namespace ringside::rl
