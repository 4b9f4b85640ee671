// Messages of chat requests in one form, so that a message that a harness sends back is recognised.
// Pure functions. Torch-free.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace ringside::rl {

// The message with the members role, content, reasoning_content, tool_calls, tool_call_id and name,
// in this order and without those that are absent or null. content is a text, "" where there is
// none; a list of text parts is joined. A tool call is {"id", "type": "function", "function":
// {"name", "arguments"}} with its arguments as an object where they parse as one, which chat
// templates expect. Role developer becomes system. Other members change nothing and are dropped.
// Throws: std::invalid_argument that names the member, for a message without a known role, with
// other parts than text, or with tool calls of another form.
nlohmann::ordered_json canonical_message(const nlohmann::ordered_json& message);

// canonical_message() of each. Throws: as it, with the message's number; without any message.
nlohmann::ordered_json canonical_messages(const nlohmann::ordered_json& messages);

// Whether two canonical messages are the same but for their reasoning, which most clients do not
// send back.
bool same_message(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

}  // namespace ringside::rl
