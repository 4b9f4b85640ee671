#include "rl/gateway/openai_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "rl/gateway/chat_messages.h"
#include "rl/gateway/request_fields.h"
#include "rl/gateway/session.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

const char* finish_name(ReplyFinish finish) {
  switch (finish) {
    case ReplyFinish::kStop:
      return "stop";
    case ReplyFinish::kLength:
      return "length";
    case ReplyFinish::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

// Fields of both routes.
ModelRequest read_common(const RequestFields& fields) {
  ModelRequest asked;
  asked.model = fields.text("model");
  asked.count = fields.integer("n", 1, 1, 128);
  asked.stops = fields.texts("stop");
  asked.stream = fields.flag("stream");
  asked.return_token_ids = fields.flag("return_token_ids");
  if (const ordered_json* options = fields.find("stream_options"); options != nullptr) {
    asked.stream_usage = RequestFields(*options).flag("include_usage");
  }
  return asked;
}

void refuse_response_format(const RequestFields& fields) {
  const ordered_json* format = fields.find("response_format");
  if (format != nullptr && RequestFields(*format).text("type") != "text") {
    throw RequestRefused(400, "response_format is not supported; expected type text");
  }
}

// The tools that the template shows: none with tool_choice none.
ordered_json shown_tools(const RequestFields& fields) {
  const ordered_json* choice = fields.find("tool_choice");
  const bool named = choice != nullptr && choice->is_string();
  if (choice != nullptr && !(named && (*choice == "auto" || *choice == "none"))) {
    throw RequestRefused(400, "tool_choice is " + choice->dump() +
                                  ", which is not supported; expected \"auto\" or \"none\"");
  }
  const ordered_json* tools = fields.find("tools");
  if (tools == nullptr || tools->empty() || (named && *choice == "none")) {
    return nullptr;
  }
  if (!tools->is_array()) {
    throw RequestRefused(400, "tools is no list");
  }
  return *tools;
}

ordered_json usage_of(const ModelReplies& replies) {
  int64_t sampled = 0;
  for (const ModelReply& reply : replies.replies) {
    sampled += std::ssize(reply.ids);
  }
  const int64_t prompt = std::ssize(replies.prompt_ids);
  return {{"prompt_tokens", prompt},
          {"completion_tokens", sampled},
          {"total_tokens", prompt + sampled}};
}

ordered_json head_of(const char* kind, const ModelRequest& asked, const ModelReplies& replies) {
  return {
      {"id", replies.id}, {"object", kind}, {"created", replies.created}, {"model", asked.model}};
}

ordered_json byte_values(const std::string& token) {
  ordered_json bytes = ordered_json::array();
  for (const char c : token) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return bytes;
}

ordered_json chat_logprobs(const ModelReply& reply) {
  ordered_json content = ordered_json::array();
  for (std::size_t i = 0; i < reply.ids.size(); ++i) {
    content.push_back({{"token", reply.tokens[i]},
                       {"logprob", reply.logprobs[i]},
                       {"bytes", byte_values(reply.tokens[i])},
                       {"top_logprobs", ordered_json::array()}});
  }
  return {{"content", content}, {"refusal", nullptr}};
}

ordered_json written_tool_calls(const ModelReply& reply, bool numbered) {
  ordered_json calls = ordered_json::array();
  for (const ReplyToolCall& call : reply.tool_calls) {
    ordered_json one = ordered_json::object();
    if (numbered) {
      one["index"] = calls.size();
    }
    one.update({{"id", call.id},
                {"type", "function"},
                {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    calls.push_back(std::move(one));
  }
  return calls;
}

ordered_json written_message(const ModelReply& reply, bool numbered) {
  ordered_json message{{"role", "assistant"}, {"content", reply.content}};
  if (reply.content.empty() && !reply.tool_calls.empty()) {
    message["content"] = nullptr;
  }
  if (!reply.reasoning.empty()) {
    message["reasoning_content"] = reply.reasoning;
  }
  if (!reply.tool_calls.empty()) {
    message["tool_calls"] = written_tool_calls(reply, numbered);
  }
  return message;
}

ordered_json text_logprobs(const ModelReply& reply) {
  ordered_json offsets = ordered_json::array();
  int64_t offset = 0;
  for (const std::string& token : reply.tokens) {
    offsets.push_back(offset);
    offset += std::ssize(token);
  }
  return {{"tokens", reply.tokens},
          {"token_logprobs", reply.logprobs},
          {"top_logprobs", nullptr},
          {"text_offset", offsets}};
}

ordered_json text_choice(const ModelRequest& asked, const ModelReply& reply, std::size_t index) {
  ordered_json choice{{"index", index},
                      {"text", reply.content},
                      {"logprobs", asked.logprobs ? text_logprobs(reply) : ordered_json()},
                      {"finish_reason", finish_name(reply.finish)}};
  if (asked.return_token_ids) {
    choice["token_ids"] = reply.ids;
  }
  return choice;
}

std::string data_event(const ordered_json& data) { return "data: " + data.dump() + "\n\n"; }

// The last events of a stream.
std::string end_of_stream(const ModelRequest& asked, const ModelReplies& replies,
                          const char* kind) {
  std::string events;
  if (asked.stream_usage) {
    ordered_json last = head_of(kind, asked, replies);
    last["choices"] = ordered_json::array();
    last["usage"] = usage_of(replies);
    events += data_event(last);
  }
  return events + "data: [DONE]\n\n";
}

}  // namespace

ModelRequest read_openai_chat(const ordered_json& body) {
  const RequestFields fields(body);
  ModelRequest asked = read_common(fields);
  const char* limit = fields.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  asked.max_tokens = fields.integer(limit, 0, 1, int64_t{1} << 31);
  asked.logprobs = fields.flag("logprobs");
  if (fields.integer("top_logprobs", 0, 0, 20) > 0) {
    throw RequestRefused(400, "top_logprobs is not supported; expected 0");
  }
  refuse_response_format(fields);
  try {
    asked.asked.messages = canonical_messages(fields.required("messages"));
  } catch (const std::invalid_argument& error) {
    throw RequestRefused(400, error.what());
  }
  asked.asked.tools = shown_tools(fields);
  return asked;
}

ModelRequest read_openai_completion(const ordered_json& body) {
  const RequestFields fields(body);
  ModelRequest asked = read_common(fields);
  asked.max_tokens = fields.integer("max_tokens", 16, 1, int64_t{1} << 31);  // OpenAI's default
  asked.logprobs = fields.find("logprobs") != nullptr;
  if (fields.flag("echo") || fields.find("suffix") != nullptr) {
    throw RequestRefused(400, "echo and suffix are not supported");
  }
  const ordered_json* prompt = &fields.required("prompt");
  if (prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number()) {
    prompt = &(*prompt)[0];
  }
  if (prompt->is_string()) {
    asked.prompt = prompt->get<std::string>();
    return asked;
  }
  const auto is_id = [](const ordered_json& id) { return id.is_number_integer(); };
  if (!prompt->is_array() || prompt->empty() ||
      !std::all_of(prompt->begin(), prompt->end(), is_id)) {
    throw RequestRefused(400, "prompt is neither one text nor one list of token ids");
  }
  asked.prompt_ids = prompt->get<std::vector<int64_t>>();
  return asked;
}

ordered_json openai_chat_answer(const ModelRequest& asked, const ModelReplies& replies) {
  ordered_json answer = head_of("chat.completion", asked, replies);
  answer["choices"] = ordered_json::array();
  for (const ModelReply& reply : replies.replies) {
    ordered_json choice{{"index", answer["choices"].size()},
                        {"message", written_message(reply, /*numbered=*/false)},
                        {"logprobs", asked.logprobs ? chat_logprobs(reply) : ordered_json()},
                        {"finish_reason", finish_name(reply.finish)}};
    if (asked.return_token_ids) {
      choice["token_ids"] = reply.ids;
    }
    answer["choices"].push_back(std::move(choice));
  }
  answer["usage"] = usage_of(replies);
  if (asked.return_token_ids) {
    answer["prompt_token_ids"] = replies.prompt_ids;
  }
  return answer;
}

ordered_json openai_completion_answer(const ModelRequest& asked, const ModelReplies& replies) {
  ordered_json answer = head_of("text_completion", asked, replies);
  answer["choices"] = ordered_json::array();
  for (const ModelReply& reply : replies.replies) {
    answer["choices"].push_back(text_choice(asked, reply, answer["choices"].size()));
  }
  answer["usage"] = usage_of(replies);
  if (asked.return_token_ids) {
    answer["prompt_token_ids"] = replies.prompt_ids;
  }
  return answer;
}

std::string openai_chat_events(const ModelRequest& asked, const ModelReplies& replies) {
  constexpr const char* kKind = "chat.completion.chunk";
  std::string events;
  for (std::size_t i = 0; i < replies.replies.size(); ++i) {
    const ModelReply& reply = replies.replies[i];
    ordered_json chunk = head_of(kKind, asked, replies);
    ordered_json choice{{"index", i},
                        {"delta", written_message(reply, /*numbered=*/true)},
                        {"logprobs", asked.logprobs ? chat_logprobs(reply) : ordered_json()},
                        {"finish_reason", nullptr}};
    chunk["choices"] = ordered_json::array({choice});
    events += data_event(chunk);
    choice["delta"] = ordered_json::object();
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = finish_name(reply.finish);
    chunk["choices"] = ordered_json::array({choice});
    events += data_event(chunk);
  }
  return events + end_of_stream(asked, replies, kKind);
}

std::string openai_completion_events(const ModelRequest& asked, const ModelReplies& replies) {
  constexpr const char* kKind = "text_completion";
  std::string events;
  for (std::size_t i = 0; i < replies.replies.size(); ++i) {
    ordered_json chunk = head_of(kKind, asked, replies);
    chunk["choices"] = ordered_json::array({text_choice(asked, replies.replies[i], i)});
    events += data_event(chunk);
  }
  return events + end_of_stream(asked, replies, kKind);
}

ordered_json openai_error(int status, const std::string& message) {
  const char* type = status == 404   ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "server_error";
  return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}};
}

}  // namespace ringside::rl
