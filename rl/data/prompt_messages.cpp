#include "rl/data/prompt_messages.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace ringside::rl {
namespace {

using Messages = nlohmann::ordered_json;

std::string role_of(const Messages& message) {
  return message.is_object() ? message.value("role", "") : "";
}

void append_suffix(Messages& message, const std::string& suffix) {
  if (role_of(message) != "user") {
    throw std::invalid_argument("data.prompt_suffix is set, but the last message is of role \"" +
                                role_of(message) + "\"; expected user");
  }
  Messages& content = message["content"];
  if (content.is_array()) {
    content.push_back({{"type", "text"}, {"text", suffix}});
  } else if (content.is_string()) {
    content = content.get<std::string>() + suffix;
  } else {
    throw std::invalid_argument(
        "data.prompt_suffix is set, but the last message has no text in \"content\"");
  }
}

}  // namespace

nlohmann::ordered_json user_message(const std::string& text) {
  return Messages::array({{{"role", "user"}, {"content", text}}});
}

nlohmann::ordered_json prompt_messages(nlohmann::ordered_json messages, const DataConfig& config) {
  if (role_of(messages.back()) == "assistant") {
    throw std::invalid_argument(
        "the last message is the assistant's, but the completion is the assistant's next message; "
        "expected a message of the user (or of a tool) at the end");
  }
  if (!config.prompt_suffix.empty()) {
    append_suffix(messages.back(), config.prompt_suffix);
  }
  const std::string first = role_of(messages.front());
  if (!config.system_prompt.empty() && first != "system" && first != "developer") {
    const Messages system = {{"role", "system"}, {"content", config.system_prompt}};
    messages.insert(messages.begin(), system);
  }
  return messages;
}

}  // namespace ringside::rl
