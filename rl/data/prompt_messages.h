// Messages of a prompt with what the recipe adds to every prompt: a system message and a suffix.
// Pure functions. Torch-free.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rl/config/config.h"

namespace ringside::rl {

// The messages with data.system_prompt in front, unless they begin with a message of role system
// or developer, and with data.prompt_suffix after the text of the last message. A last message
// whose content is a list of parts gets one more part of type text.
// Throws: std::invalid_argument when the last message is the assistant's (the completion is the
// assistant's next message), and when a suffix is set and the last message is not a user's or has
// no text.
nlohmann::ordered_json prompt_messages(nlohmann::ordered_json messages, const DataConfig& config);

// One message of role user with this text.
nlohmann::ordered_json user_message(const std::string& text);

}  // namespace ringside::rl
