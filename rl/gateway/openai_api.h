// OpenAI's HTTP dialect: /v1/chat/completions and /v1/completions. Pure functions. Torch-free.
// Source: OpenAI's API reference; the fields token_ids, prompt_token_ids and reasoning_content are
// vLLM's.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rl/gateway/event_writer.h"
#include "rl/gateway/model_request.h"

namespace ringside::rl {

// Reads a request. Fields that set how tokens are drawn are accepted and have no effect.
// Throws: RequestRefused (400) that names the field, for one that is missing or malformed, and for
// what is not supported: several prompts, top_logprobs, response_format other than text,
// tool_choice other than auto and none, echo, suffix.
ModelRequest read_openai_chat(const nlohmann::ordered_json& body);
ModelRequest read_openai_completion(const nlohmann::ordered_json& body);

// The answer as one JSON object.
nlohmann::ordered_json openai_chat_answer(const ModelRequest& asked, const ModelReplies& replies);
nlohmann::ordered_json openai_completion_answer(const ModelRequest& asked,
                                                const ModelReplies& replies);

// The answer as the events of a stream. Each tool call comes in one piece.
std::unique_ptr<EventWriter> openai_chat_events(const ModelRequest& asked);
std::unique_ptr<EventWriter> openai_completion_events(const ModelRequest& asked);

// The body of an error of this HTTP status.
nlohmann::ordered_json openai_error(int status, const std::string& message);

}  // namespace ringside::rl
