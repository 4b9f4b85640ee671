#include "rl/gateway/anthropic_api.h"

#include <nlohmann/json.hpp>

#include "rl/gateway/chat_messages.h"
#include "rl/gateway/request_fields.h"
#include "rl/gateway/session.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

// The text of a field that is a text or a list of text blocks.
std::string joined_text(const ordered_json& content, const char* what) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  std::string text;
  for (const ordered_json& block : content) {
    const RequestFields fields(block);
    if (fields.text("type") != "text") {
      throw RequestRefused(400, std::string(what) + " has a block of type \"" +
                                    fields.text("type") + "\"; expected text");
    }
    text += fields.text("text");
  }
  return text;
}

ordered_json tool_result_message(const RequestFields& block) {
  const ordered_json* content = block.find("content");
  return {{"role", "tool"},
          {"tool_call_id", block.text("tool_use_id")},
          {"content", content ? joined_text(*content, "a tool_result") : ""}};
}

ordered_json tool_call_of(const RequestFields& block) {
  const ordered_json* input = block.find("input");
  return {{"id", block.text("id")},
          {"type", "function"},
          {"function",
           {{"name", block.text("name")}, {"arguments", input ? *input : ordered_json::object()}}}};
}

// One message of theirs is several of ours if it has results of tools.
void add_message(const ordered_json& message, ordered_json& messages) {
  const RequestFields fields(message);
  const std::string role = fields.text("role");
  if (role != "user" && role != "assistant") {
    throw RequestRefused(400, "role is \"" + role + "\"; expected user or assistant");
  }
  const ordered_json& content = fields.required("content");
  if (content.is_string()) {
    messages.push_back({{"role", role}, {"content", content}});
    return;
  }
  ordered_json own{{"role", role}, {"content", ""}};
  bool has_own = false;
  for (const ordered_json& block : content) {
    const RequestFields of_block(block);
    const std::string type = of_block.text("type");
    if (type == "tool_result" && role == "user") {
      messages.push_back(tool_result_message(of_block));
      continue;
    }
    has_own = true;
    if (type == "text") {
      own["content"] = own["content"].get<std::string>() + of_block.text("text");
    } else if (type == "thinking" && role == "assistant") {
      own["reasoning_content"] = of_block.text("thinking");
    } else if (type == "tool_use" && role == "assistant") {
      own["tool_calls"].push_back(tool_call_of(of_block));
    } else {
      throw RequestRefused(400, "a message of role " + role + " has a block of type \"" + type +
                                    "\"; expected text, thinking, tool_use or tool_result");
    }
  }
  if (has_own) {
    messages.push_back(std::move(own));
  }
}

ordered_json function_tools(const RequestFields& fields) {
  const ordered_json* choice = fields.find("tool_choice");
  const std::string kind = choice ? RequestFields(*choice).text("type") : "auto";
  if (kind != "auto" && kind != "none") {
    throw RequestRefused(
        400, "tool_choice of type \"" + kind + "\" is not supported; expected auto or none");
  }
  const ordered_json* tools = fields.find("tools");
  if (tools == nullptr || tools->empty() || kind == "none") {
    return nullptr;
  }
  ordered_json all = ordered_json::array();
  for (const ordered_json& tool : *tools) {
    const RequestFields of_tool(tool);
    ordered_json function{{"name", of_tool.text("name")}};
    if (const ordered_json* description = of_tool.find("description")) {
      function["description"] = *description;
    }
    function["parameters"] = of_tool.required("input_schema");
    all.push_back({{"type", "function"}, {"function", function}});
  }
  return all;
}

const char* stop_reason(const ModelReply& reply) {
  if (!reply.stop_text.empty()) {
    return "stop_sequence";
  }
  switch (reply.finish) {
    case ReplyFinish::kStop:
      return "end_turn";
    case ReplyFinish::kLength:
      return "max_tokens";
    case ReplyFinish::kToolCalls:
      return "tool_use";
  }
  return "end_turn";
}

ordered_json input_of(const ReplyToolCall& call) {
  ordered_json input = ordered_json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : ordered_json{{"arguments", call.arguments}};
}

ordered_json blocks_of(const ModelReply& reply) {
  ordered_json blocks = ordered_json::array();
  if (!reply.reasoning.empty()) {
    blocks.push_back({{"type", "thinking"}, {"thinking", reply.reasoning}, {"signature", ""}});
  }
  if (!reply.content.empty() || reply.tool_calls.empty()) {
    blocks.push_back({{"type", "text"}, {"text", reply.content}});
  }
  for (const ReplyToolCall& call : reply.tool_calls) {
    blocks.push_back(
        {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", input_of(call)}});
  }
  return blocks;
}

ordered_json stop_text_of(const ModelReply& reply) {
  return reply.stop_text.empty() ? ordered_json() : ordered_json(reply.stop_text);
}

std::string named_event(const char* name, ordered_json data) {
  ordered_json all{{"type", name}};
  all.update(data);
  return std::string("event: ") + name + "\ndata: " + all.dump() + "\n\n";
}

// The events of one block: it starts empty, and its content is the one change.
std::string block_events(const ordered_json& block, std::size_t index) {
  ordered_json start = block, delta;
  if (block["type"] == "text") {
    start["text"] = "";
    delta = {{"type", "text_delta"}, {"text", block["text"]}};
  } else if (block["type"] == "thinking") {
    start["thinking"] = "";
    delta = {{"type", "thinking_delta"}, {"thinking", block["thinking"]}};
  } else {
    start["input"] = ordered_json::object();
    delta = {{"type", "input_json_delta"}, {"partial_json", block["input"].dump()}};
  }
  return named_event("content_block_start", {{"index", index}, {"content_block", start}}) +
         named_event("content_block_delta", {{"index", index}, {"delta", delta}}) +
         named_event("content_block_stop", {{"index", index}});
}

}  // namespace

ModelRequest read_anthropic_messages(const ordered_json& body) {
  const RequestFields fields(body);
  ModelRequest asked;
  asked.model = fields.text("model");
  fields.required("max_tokens");
  asked.max_tokens = fields.integer("max_tokens", 0, 1, int64_t{1} << 31);
  asked.stops = fields.texts("stop_sequences");
  asked.stream = fields.flag("stream");
  ordered_json messages = ordered_json::array();
  if (const ordered_json* system = fields.find("system")) {
    messages.push_back({{"role", "system"}, {"content", joined_text(*system, "system")}});
  }
  for (const ordered_json& message : fields.required("messages")) {
    add_message(message, messages);
  }
  try {
    asked.asked.messages = canonical_messages(messages);
  } catch (const std::invalid_argument& error) {
    throw RequestRefused(400, error.what());
  }
  asked.asked.tools = function_tools(fields);
  return asked;
}

ordered_json anthropic_answer(const ModelRequest& asked, const ModelReplies& replies) {
  const ModelReply& reply = replies.replies.front();
  return {{"id", replies.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", asked.model},
          {"content", blocks_of(reply)},
          {"stop_reason", stop_reason(reply)},
          {"stop_sequence", stop_text_of(reply)},
          {"usage",
           {{"input_tokens", replies.prompt_ids.size()}, {"output_tokens", reply.ids.size()}}}};
}

std::string anthropic_events(const ModelRequest& asked, const ModelReplies& replies) {
  ordered_json message = anthropic_answer(asked, replies);
  const ordered_json blocks = message["content"];
  const ordered_json usage = message["usage"];
  message["content"] = ordered_json::array();
  message["stop_reason"] = nullptr;
  message["stop_sequence"] = nullptr;
  message["usage"]["output_tokens"] = 0;
  std::string events = named_event("message_start", {{"message", message}});
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events += block_events(blocks[i], i);
  }
  const ModelReply& reply = replies.replies.front();
  return events +
         named_event(
             "message_delta",
             {{"delta",
               {{"stop_reason", stop_reason(reply)}, {"stop_sequence", stop_text_of(reply)}}},
              {"usage", usage}}) +
         named_event("message_stop", ordered_json::object());
}

ordered_json anthropic_error(int status, const std::string& message) {
  const char* type = status == 404   ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "api_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
}

}  // namespace ringside::rl
