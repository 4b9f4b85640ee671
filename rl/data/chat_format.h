// Chat format of a run: how conversations of the data become text, as data.chat_template says.
// Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/chat.h"

namespace ringside::rl {

class PythonProcess;

// A conversation as the data has it.
struct Conversation {
  // Templates print objects, so the order of their members counts.
  nlohmann::ordered_json messages;  // an array of {"role", "content", ...}
  nlohmann::ordered_json tools;     // an array of function schemas, or null

  bool empty() const { return messages.empty(); }
};

// A whole conversation as text.
struct RenderedChat {
  std::string text;
  // Bytes [begin, end) that the assistant wrote, in order.
  std::vector<std::pair<int64_t, int64_t>> learned;
};

// The template of the model cannot be used for any conversation: it is missing or wrong, or python3
// or Jinja2 is.
class ChatUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// With data.chat_template model, the template of model.path is rendered by Jinja2 in a Python
// process that is started at the first use and kept. It is the first of python3 on PATH and
// /usr/bin/python3 that has Jinja2.
// Thread safety: none.
class ChatFormat {
 public:
  // timeout_s: of one conversation.
  explicit ChatFormat(const Config& config, double timeout_s = 30.0);
  ~ChatFormat();
  ChatFormat(ChatFormat&&) noexcept;

  ChatTemplate kind() const { return data_.chat_template; }
  // data.add_special_tokens: of texts that are no conversations.
  AddSpecialTokens add_special_tokens() const { return data_.add_special_tokens; }

  // The conversation for completion: up to the beginning of an assistant's message.
  // Blocks: with data.chat_template model, at most timeout_s and the start of the process.
  // Throws: std::runtime_error for a conversation that the model's template cannot render;
  // ChatUnavailable; with another template what plain_messages() and chat_prompt() throw.
  std::string prompt(const Conversation& conversation);

  // The whole conversation. Blocks and throws: as prompt().
  std::string text(const Conversation& conversation);

  // What the template writes behind what an assistant says, with these tools or null: its end
  // marker and white space. nullopt when it cannot render a question with an answer. Blocks: as
  // prompt().
  std::optional<std::string> closing(const nlohmann::ordered_json& tools);

  // The same of the model's template with what the assistant wrote, with data.chat_template model
  // only. The assistant's parts are those that the template marks by {% generation %}. In a
  // template without marks they are found by rendering the conversation up to each of the
  // assistant's messages: from the end of the prompt to the end of the message, without white space
  // after it. Blocks: as prompt(). Throws: as prompt(), and for a template whose earlier messages
  // change when later ones follow.
  RenderedChat render(const Conversation& conversation);

 private:
  void start();
  void start_process();
  // form: "prompt", "text" or "spans".
  nlohmann::json ask(const Conversation& conversation, const char* form);

  DataConfig data_;
  std::string model_path_;
  double timeout_s_;
  std::unique_ptr<PythonProcess> process_;
};

// The messages of a conversation for chatml and llama3, which render role and content alone.
// Throws: std::invalid_argument for a message with anything else, and for tools.
std::vector<ChatMessage> plain_messages(const Conversation& conversation);

// The text of "chat_template" of a model directory by name, "default" for the usual one:
// chat_template.jinja, additional_chat_templates/*.jinja, else tokenizer_config.json.
// Throws: std::runtime_error when there is no default one, or a file cannot be read.
nlohmann::json model_chat_templates(const std::filesystem::path& model);

// Special tokens by role (bos_token, eos_token, ...) of tokenizer_config.json and
// special_tokens_map.json.
// Throws: std::runtime_error when one of the two is not JSON.
nlohmann::json model_special_tokens(const std::filesystem::path& model);

}  // namespace ringside::rl
