#include "rl/gateway/anthropic_api.h"

#include <nlohmann/json.hpp>
#include <utility>

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
      own["reasoning_content"] =
          own.value("reasoning_content", std::string()) + of_block.text("thinking");
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

ordered_json tool_block(const ReplyToolCall& call, ordered_json input) {
  return {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", std::move(input)}};
}

ordered_json message_usage(const ModelReplies& answer) {
  return {{"input_tokens", answer.prompt_ids.size()},
          {"output_tokens", answer.replies.front().ids.size()}};
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
    blocks.push_back(tool_block(call, input_of(call)));
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

// Reasoning and text as they come, in a block until another begins; a call is a block of its own.
class MessageEvents : public EventWriter {
 public:
  explicit MessageEvents(const ModelRequest& asked) : asked_(asked) {}

  std::string begin(const ModelReplies& answer) override {
    return named_event(
        "message_start",
        {{"message",
          {{"id", answer.id},
           {"type", "message"},
           {"role", "assistant"},
           {"model", asked_.model},
           {"content", ordered_json::array()},
           {"stop_reason", nullptr},
           {"stop_sequence", nullptr},
           {"usage", {{"input_tokens", answer.prompt_ids.size()}, {"output_tokens", 0}}}}}});
  }
  std::string part(std::size_t /*choice*/, const ReplyPart& part) override {
    std::string events;
    if (!part.reasoning.empty()) {
      events += in_block({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      events += delta({{"type", "thinking_delta"}, {"thinking", part.reasoning}});
    }
    if (!part.content.empty()) {
      events += in_block({{"type", "text"}, {"text", ""}});
      events += delta({{"type", "text_delta"}, {"text", part.content}});
    }
    for (const ReplyToolCall& call : part.tool_calls) {
      events += close_block();  // also one of another call
      events += in_block(tool_block(call, ordered_json::object()));
      events += delta({{"type", "input_json_delta"}, {"partial_json", input_of(call).dump()}});
      events += close_block();
    }
    return events;
  }
  std::string end(const ModelReplies& answer) override {
    const ModelReply& reply = answer.replies.front();
    std::string events;
    if (reply.content.empty() && reply.tool_calls.empty()) {
      events += in_block({{"type", "text"}, {"text", ""}});
    }
    return events + close_block() +
           named_event(
               "message_delta",
               {{"delta",
                 {{"stop_reason", stop_reason(reply)}, {"stop_sequence", stop_text_of(reply)}}},
                {"usage", message_usage(answer)}}) +
           named_event("message_stop", ordered_json::object());
  }
  std::string error(int status, const std::string& why) override {
    return named_event("error", anthropic_error(status, why));
  }

 private:
  // Begins the block unless one of its type is open.
  std::string in_block(const ordered_json& block) {
    if (open_ == block["type"]) {
      return "";
    }
    std::string events = close_block();
    open_ = block["type"].get<std::string>();
    return events +
           named_event("content_block_start", {{"index", index_}, {"content_block", block}});
  }
  std::string delta(const ordered_json& change) const {
    return named_event("content_block_delta", {{"index", index_}, {"delta", change}});
  }
  std::string close_block() {
    return std::exchange(open_, "").empty()
               ? ""
               : named_event("content_block_stop", {{"index", index_++}});
  }

  ModelRequest asked_;
  std::string open_;  // the type of the block that is open, or ""
  int64_t index_ = 0;
};

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
          {"usage", message_usage(replies)}};
}

std::unique_ptr<EventWriter> anthropic_events(const ModelRequest& asked) {
  return std::make_unique<MessageEvents>(asked);
}

ordered_json anthropic_error(int status, const std::string& message) {
  const char* type = status == 404   ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "api_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", message}}}};
}

}  // namespace ringside::rl
