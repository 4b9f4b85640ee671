// Anthropic's HTTP dialect: /v1/messages. Pure functions. Torch-free.
// Source: Anthropic's Messages API reference.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rl/gateway/event_writer.h"
#include "rl/gateway/model_request.h"

namespace ringside::rl {

// Reads a request as a chat request: system becomes a message, tool_use and tool_result blocks
// become tool calls and messages of role tool, thinking blocks become reasoning, input_schema
// becomes the parameters of a function. Fields that set how tokens are drawn have no effect.
// Throws: RequestRefused (400) that names the field, for one that is missing or malformed, and for
// what is not supported: other blocks than text, thinking, tool_use and tool_result; tool_choice
// any and tool.
ModelRequest read_anthropic_messages(const nlohmann::ordered_json& body);

// The answer as one JSON object. There is one reply.
nlohmann::ordered_json anthropic_answer(const ModelRequest& asked, const ModelReplies& replies);
// The answer as the events of a stream. Each tool call comes in one piece.
std::unique_ptr<EventWriter> anthropic_events(const ModelRequest& asked);

// The body of an error of this HTTP status.
nlohmann::ordered_json anthropic_error(int status, const std::string& message);

}  // namespace ringside::rl
