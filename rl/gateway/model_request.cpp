#include "rl/gateway/model_request.h"

#include <nlohmann/json.hpp>

#include "rl/gateway/chat_messages.h"

namespace ringside::rl {

nlohmann::ordered_json reply_message(const ModelReply& reply) {
  nlohmann::ordered_json message{{"role", "assistant"}, {"content", reply.content}};
  if (!reply.reasoning.empty()) {
    message["reasoning_content"] = reply.reasoning;
  }
  for (const ReplyToolCall& call : reply.tool_calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return canonical_message(message);
}

}  // namespace ringside::rl
