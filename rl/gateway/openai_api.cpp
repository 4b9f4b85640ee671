#include "rl/gateway/openai_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

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

ordered_json chat_logprobs(const ReplyPart& reply) {
  ordered_json content = ordered_json::array();
  for (std::size_t i = 0; i < reply.ids.size(); ++i) {
    content.push_back({{"token", reply.tokens[i]},
                       {"logprob", reply.logprobs[i]},
                       {"bytes", byte_values(reply.tokens[i])},
                       {"top_logprobs", ordered_json::array()}});
  }
  return {{"content", content}, {"refusal", nullptr}};
}

// first: the number of the first one in a stream; none without numbers.
ordered_json written_tool_calls(const ReplyPart& part, std::optional<std::size_t> first) {
  ordered_json calls = ordered_json::array();
  for (const ReplyToolCall& call : part.tool_calls) {
    ordered_json one = ordered_json::object();
    if (first) {
      one["index"] = *first + calls.size();
    }
    one.update({{"id", call.id},
                {"type", "function"},
                {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    calls.push_back(std::move(one));
  }
  return calls;
}

ordered_json written_message(const ModelReply& reply) {
  ordered_json message{{"role", "assistant"}, {"content", reply.content}};
  if (reply.content.empty() && !reply.tool_calls.empty()) {
    message["content"] = nullptr;
  }
  if (!reply.reasoning.empty()) {
    message["reasoning_content"] = reply.reasoning;
  }
  if (!reply.tool_calls.empty()) {
    message["tool_calls"] = written_tool_calls(reply, std::nullopt);
  }
  return message;
}

// offset: bytes of the tokens before these.
ordered_json text_logprobs(const ReplyPart& reply, int64_t offset) {
  ordered_json offsets = ordered_json::array();
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
                      {"logprobs", asked.logprobs ? text_logprobs(reply, 0) : ordered_json()},
                      {"finish_reason", finish_name(reply.finish)}};
  if (asked.return_token_ids) {
    choice["token_ids"] = reply.ids;
  }
  return choice;
}

std::string data_event(const ordered_json& data) { return "data: " + data.dump() + "\n\n"; }

// What both routes' streams have.
class OpenAiEvents : public EventWriter {
 public:
  OpenAiEvents(const ModelRequest& asked, const char* kind) : asked_(asked), kind_(kind) {}

  std::string end(const ModelReplies& answer) override {
    std::string events;
    for (std::size_t i = 0; i < answer.replies.size(); ++i) {
      ordered_json choice = empty_choice(i);
      choice["finish_reason"] = finish_name(answer.replies[i].finish);
      events += chunk(choice);
    }
    if (asked_.stream_usage) {
      ordered_json last = head_of(kind_, asked_, answer);
      last["choices"] = ordered_json::array();
      last["usage"] = usage_of(answer);
      events += data_event(last);
    }
    return events + "data: [DONE]\n\n";
  }
  std::string error(int status, const std::string& why) override {
    return data_event(openai_error(status, why));
  }

 protected:
  // A choice of a chunk in which nothing is new.
  virtual ordered_json empty_choice(std::size_t index) const = 0;

  void set_head(const ModelReplies& answer) { head_ = head_of(kind_, asked_, answer); }
  std::string chunk(const ordered_json& choice, const ordered_json& more = {}) const {
    ordered_json data = head_;
    data["choices"] = ordered_json::array({choice});
    if (!more.is_null()) {
      data.update(more);
    }
    return data_event(data);
  }
  // What return_token_ids puts into the first chunk.
  ordered_json prompt_of(const ModelReplies& answer) const {
    return asked_.return_token_ids ? ordered_json{{"prompt_token_ids", answer.prompt_ids}}
                                   : ordered_json();
  }
  // Whether a part of a reply, which has no text, has something that was asked for.
  bool has_tokens(const ReplyPart& part) const {
    return !part.ids.empty() && (asked_.logprobs || asked_.return_token_ids);
  }
  const ModelRequest& asked() const { return asked_; }

 private:
  ModelRequest asked_;
  const char* kind_;
  ordered_json head_;
};

class ChatEvents : public OpenAiEvents {
 public:
  explicit ChatEvents(const ModelRequest& asked)
      : OpenAiEvents(asked, "chat.completion.chunk"),
        calls_(static_cast<std::size_t>(asked.count)) {}

  std::string begin(const ModelReplies& answer) override {
    set_head(answer);
    std::string events;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      ordered_json choice = empty_choice(i);
      choice["delta"] = {{"role", "assistant"}, {"content", ""}};
      events += chunk(choice, i == 0 ? prompt_of(answer) : ordered_json());
    }
    return events;
  }
  std::string part(std::size_t index, const ReplyPart& part) override {
    ordered_json choice = empty_choice(index);
    ordered_json& delta = choice["delta"];
    if (!part.reasoning.empty()) {
      delta["reasoning_content"] = part.reasoning;
    }
    if (!part.content.empty()) {
      delta["content"] = part.content;
    }
    if (!part.tool_calls.empty()) {
      delta["tool_calls"] = written_tool_calls(part, calls_.at(index));
      calls_[index] += part.tool_calls.size();
    }
    if (delta.empty() && !has_tokens(part)) {
      return "";
    }
    if (asked().logprobs) {
      choice["logprobs"] = chat_logprobs(part);
    }
    if (asked().return_token_ids) {
      choice["token_ids"] = part.ids;
    }
    return chunk(choice);
  }

 private:
  ordered_json empty_choice(std::size_t index) const override {
    return {{"index", index},
            {"delta", ordered_json::object()},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  std::vector<std::size_t> calls_;  // of each choice so far
};

class TextEvents : public OpenAiEvents {
 public:
  explicit TextEvents(const ModelRequest& asked)
      : OpenAiEvents(asked, "text_completion"), offsets_(static_cast<std::size_t>(asked.count)) {}

  std::string begin(const ModelReplies& answer) override {
    set_head(answer);
    const ordered_json prompt = prompt_of(answer);
    return prompt.is_null() ? "" : chunk(empty_choice(0), prompt);
  }
  std::string part(std::size_t index, const ReplyPart& part) override {
    if (part.content.empty() && !has_tokens(part)) {
      return "";
    }
    ordered_json choice = empty_choice(index);
    choice["text"] = part.content;
    if (asked().logprobs) {
      choice["logprobs"] = text_logprobs(part, offsets_.at(index));
      for (const std::string& token : part.tokens) {
        offsets_[index] += std::ssize(token);
      }
    }
    if (asked().return_token_ids) {
      choice["token_ids"] = part.ids;
    }
    return chunk(choice);
  }

 private:
  ordered_json empty_choice(std::size_t index) const override {
    return {{"index", index}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }

  std::vector<int64_t> offsets_;  // of each choice: bytes of its tokens so far
};

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
                        {"message", written_message(reply)},
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

std::unique_ptr<EventWriter> openai_chat_events(const ModelRequest& asked) {
  return std::make_unique<ChatEvents>(asked);
}

std::unique_ptr<EventWriter> openai_completion_events(const ModelRequest& asked) {
  return std::make_unique<TextEvents>(asked);
}

ordered_json openai_error(int status, const std::string& message) {
  const char* type = status == 404   ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "server_error";
  return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}};
}

}  // namespace ringside::rl
