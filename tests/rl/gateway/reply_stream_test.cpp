// Guards streams: an answer that comes as one piece at the end, a piece that the whole answer does
// not have, half a character or half a marker, and tokens that are lost when a client goes.
#include "rl/gateway/reply_stream.h"

#include <httplib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <future>
#include <set>

#include "rl/gateway/anthropic_api.h"
#include "rl/gateway/gateway_server.h"
#include "tests/rl/gateway/gateway_desk.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using nlohmann::ordered_json;
using std::chrono::seconds;

// A prompt that ends as the only message does, so that a test says how reasoning begins.
constexpr const char* kBareTemplate = "q{{ messages[0].content }}";
constexpr SessionLimits kLimits{.max_turns = 4, .max_new_tokens = 100'000};

ordered_json chat_body(const std::string& content = "x") {
  return {{"model", "m"},
          {"max_tokens", 50'000},
          {"stream", true},
          {"messages", ordered_json::array({{{"role", "user"}, {"content", content}}})}};
}

// The data of a stream's events, without the end of OpenAI's.
std::vector<ordered_json> data_of(const std::string& events) {
  std::vector<ordered_json> all;
  for (std::size_t at = events.find("data: "); at != std::string::npos;
       at = events.find("data: ", at)) {
    at += std::string_view("data: ").size();
    const std::string data = events.substr(at, events.find("\n\n", at) - at);
    if (data != "[DONE]") {
      all.push_back(ordered_json::parse(data));
    }
  }
  return all;
}

std::string all_events(ReplyStream& stream) {
  std::string all;
  for (std::string events = stream.next(); !events.empty(); events = stream.next()) {
    all += events;
  }
  return all;
}

// What the chunks of a chat completion say, put together as a client does: by choice.
ordered_json joined_choices(const std::string& events) {
  ordered_json choices = ordered_json::array();
  for (const ordered_json& chunk : data_of(events)) {
    for (const ordered_json& choice : chunk.at("choices")) {
      const auto index = choice.at("index").get<std::size_t>();
      if (choices.size() <= index) {
        choices.push_back({{"index", index},
                           {"message", {{"role", "assistant"}, {"content", ""}}},
                           {"logprobs", nullptr},
                           {"finish_reason", nullptr},
                           {"token_ids", ordered_json::array()}});
      }
      ordered_json& all = choices.at(index);
      for (const auto& [key, value] : choice.at("delta").items()) {
        if (key == "tool_calls") {
          for (ordered_json call : value) {
            CHECK(call.at("index") == all["message"][key].size());
            call.erase("index");
            all["message"][key].push_back(call);
          }
        } else if (key != "role") {
          all["message"][key] = all["message"].value(key, std::string()) + value.get<std::string>();
        }
      }
      for (const ordered_json& id : choice.value("token_ids", ordered_json::array())) {
        all["token_ids"].push_back(id);
      }
      if (!choice.at("logprobs").is_null()) {
        for (const ordered_json& token : choice.at("logprobs").at("content")) {
          all["logprobs"]["content"].push_back(token);
        }
      }
      CHECK(all["finish_reason"].is_null());  // nothing follows it
      all["finish_reason"] = choice.at("finish_reason");
    }
  }
  for (ordered_json& choice : choices) {
    if (!choice["logprobs"].is_null()) {
      choice["logprobs"]["refusal"] = nullptr;
    }
    ordered_json& message = choice["message"];
    if (message["content"] == "" && message.contains("tool_calls")) {
      message["content"] = nullptr;
    }
    if (message.contains("tool_calls")) {  // a call may be streamed before reasoning behind it
      ordered_json calls = std::move(message["tool_calls"]);
      message.erase("tool_calls");
      message["tool_calls"] = std::move(calls);
    }
  }
  return choices;
}

// The blocks of an Anthropic stream: text joined, and reasoning joined, as a client that sends them
// back has them.
ordered_json joined_blocks(const std::string& events) {
  std::string text, thinking, json;
  ordered_json tools = ordered_json::array();
  int open = -1;
  std::string type;
  for (const ordered_json& event : data_of(events)) {
    if (event["type"] == "content_block_start") {
      CHECK(type.empty());
      CHECK(event["index"] == ++open);
      type = event["content_block"]["type"];
      if (type == "tool_use") {
        tools.push_back(event["content_block"]);
        json.clear();
      }
    } else if (event["type"] == "content_block_delta") {
      CHECK(event["index"] == open);
      const ordered_json& delta = event["delta"];
      text += delta.value("text", "");
      thinking += delta.value("thinking", "");
      json += delta.value("partial_json", "");
      CHECK(delta["type"] == (type == "tool_use"   ? "input_json_delta"
                              : type == "thinking" ? "thinking_delta"
                                                   : "text_delta"));
    } else if (event["type"] == "content_block_stop") {
      CHECK(event["index"] == open);
      if (type == "tool_use") {
        tools.back()["input"] = ordered_json::parse(json);
      }
      type.clear();
    }
  }
  CHECK(type.empty());
  ordered_json blocks = ordered_json::array();
  if (!thinking.empty()) {
    blocks.push_back({{"type", "thinking"}, {"thinking", thinking}, {"signature", ""}});
  }
  if (!text.empty() || tools.empty()) {
    blocks.push_back({{"type", "text"}, {"text", text}});
  }
  for (const ordered_json& tool : tools) {
    blocks.push_back(tool);
  }
  return blocks;
}

// A model that waits with its last token until it is released; for a while, so that an answer that
// comes as a whole fails the test and does not hang it.
class LastToken {
 public:
  explicit LastToken(test::GatewayDesk& desk) {
    desk.before_token = [this](std::size_t token, std::size_t tokens) {
      if (token + 1 == tokens && released_.wait_for(seconds(20)) != std::future_status::ready) {
        throw std::runtime_error("no piece came before the last token");
      }
    };
  }
  void release() { release_.set_value(); }

 private:
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
};

bridge::Rollout ended(Session& session) {
  session.end({.rewards = {{"reward", 1.0}}});
  bridge::Rollout rollout;
  session.write(rollout);
  return rollout;
}

TEST_CASE("a stream's pieces come before the last token is drawn") {
  test::GatewayDesk desk;
  LastToken last(desk);
  desk.says("Hello there");
  const auto session = desk.session();
  const ModelRequest asked = read_openai_chat(chat_body());
  const auto stream = desk.gateway().stream(session, asked, openai_chat_events(asked));
  std::string early;
  while (joined_choices(early).empty() ||
         joined_choices(early)[0]["message"]["content"] != "Hello there") {
    const std::string events = stream->next();
    REQUIRE(!events.empty());
    early += events;
  }
  CHECK(joined_choices(early)[0]["finish_reason"].is_null());
  last.release();
  const std::string rest = all_events(*stream);
  CHECK_THAT(rest, Contains("\"finish_reason\":\"stop\"") && Catch::EndsWith("data: [DONE]\n\n"));
  CHECK(ended(*session).completion_ids.size() == 12);
}

TEST_CASE("the texts of all parsers are streamed as they are answered") {
  test::GatewayDesk desk(test::byte_tokenizer(), test::kBytesEnd, kBareTemplate);
  const auto goldens =
      nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/message_parsers.json"));
  std::set<std::string> parsers;
  int number = 0;
  for (const auto& row : goldens["cases"]) {
    const std::string parser = row[0], start = row[1], text = row[2];
    INFO(parser << ", reasoning " << start << ": " << text);
    parsers.insert(parser);
    const bool bracket = parser == "mistral", channel = parser == "gemma4";
    const std::string open = bracket ? "[THINK]" : channel ? "<|channel>" : "<think>";
    const std::string close = bracket ? "[/THINK]" : channel ? "<channel|>" : "</think>";
    ordered_json body = chat_body(start == "prompt" ? open : start == "none" ? close : "x");
    body["tools"] = goldens["tools"];
    body["logprobs"] = body["return_token_ids"] = true;
    Gateway gateway(desk.desk(), desk.text(), parser);
    const ModelRequest asked = read_openai_chat(body);
    desk.says(text);
    const ModelReplies whole = gateway.answer(desk.session(kLimits), asked);
    desk.says(text);
    const std::string chunks =
        all_events(*gateway.stream(desk.session(kLimits), asked, openai_chat_events(asked)));
    CHECK(joined_choices(chunks) == openai_chat_answer(asked, whole)["choices"]);
    if (number++ % 3 != 0) {  // the events of the other dialect for some
      continue;
    }
    desk.says(text);
    const std::string events =
        all_events(*gateway.stream(desk.session(kLimits), asked, anthropic_events(asked)));
    const ordered_json answer = anthropic_answer(asked, whole);
    CHECK(joined_blocks(events) == answer["content"]);
    const std::vector<ordered_json> data = data_of(events);
    CHECK(data[data.size() - 2]["delta"]["stop_reason"] == answer["stop_reason"]);
    CHECK(data[data.size() - 2]["usage"] == answer["usage"]);
    CHECK(data.back()["type"] == "message_stop");
  }
  CHECK(parsers.size() == 11);
}

TEST_CASE("no piece of a stream has half a character, or the beginning of a text that ends it") {
  test::GatewayDesk desk(test::byte_tokenizer(), test::kBytesEnd, kBareTemplate);
  for (const std::string text :
       {"Grüße 今日 🌤️ END STO", "a\n\nb STOP c", "ab\xE2\x82", "\xF0\x9F\xFF", "STSTOP", ""}) {
    for (const bool chat : {true, false}) {
      ordered_json body = chat_body();
      body["stop"] = {"STOP", "\n\n", "TO1"};
      body["prompt"] = "q";
      body["logprobs"] = 1;
      if (chat) {
        body["logprobs"] = true;
      }
      INFO((chat ? "chat: " : "text: ") << text);
      const ModelRequest asked = chat ? read_openai_chat(body) : read_openai_completion(body);
      desk.says(text);
      const ModelReplies whole = desk.gateway().answer(desk.session(kLimits), asked);
      desk.says(text);
      const auto session = desk.session(kLimits);
      const auto stream = desk.gateway().stream(
          session, asked, chat ? openai_chat_events(asked) : openai_completion_events(asked));
      std::string joined;
      std::size_t logprobs = 0, content = 0;
      for (const ordered_json& chunk :
           data_of(all_events(*stream))) {  // dump() needs whole characters
        const ordered_json& choice = chunk["choices"][0];
        joined += chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
        CHECK(whole.replies[0].content.starts_with(joined));
        if (!choice["logprobs"].is_null()) {
          logprobs += choice["logprobs"][chat ? "content" : "tokens"].size();
          content += 1;
        }
      }
      CHECK(joined == whole.replies[0].content);
      CHECK(logprobs == whole.replies[0].ids.size());
      CHECK(ended(*session).completion_ids == whole.replies[0].ids);
    }
  }
}

TEST_CASE("several choices are streamed with their numbers, and recorded in their order") {
  test::GatewayDesk desk;
  ordered_json body = chat_body();
  body["n"] = 2;
  body["stream_options"] = {{"include_usage", true}};
  const ModelRequest asked = read_openai_chat(body);
  desk.says("one");
  desk.says("three");
  const auto session = desk.session();
  const std::string events =
      all_events(*desk.gateway().stream(session, asked, openai_chat_events(asked)));
  const ordered_json choices = joined_choices(events);
  REQUIRE(choices.size() == 2);
  CHECK(choices[0]["message"]["content"] == "one");
  CHECK(choices[1]["message"]["content"] == "three");
  CHECK(data_of(events).back()["usage"]["completion_tokens"] == 10);
  CHECK(ended(*session).turn_offsets == std::vector<int32_t>{0, 4});
}

TEST_CASE("a client that goes in the middle of a stream changes nothing in the record") {
  test::GatewayDesk desk;
  LastToken last(desk);
  desk.says("Hello there");
  const auto session = desk.session();
  const ModelRequest asked = read_openai_chat(chat_body());
  auto stream = desk.gateway().stream(session, asked, openai_chat_events(asked));
  stream->next();
  stream->next();
  last.release();
  stream.reset();
  const bridge::Rollout rollout = ended(*session);
  CHECK(desk.decode(rollout.completion_ids) == "Hello there<|im_end|>");
  CHECK(rollout.loss_mask == std::vector<uint8_t>(12, 1));
}

TEST_CASE("what fails in the middle of a stream is its last event") {
  for (const bool anthropic : {false, true}) {
    test::GatewayDesk desk;
    const auto session = desk.session();
    desk.before_token = [&](std::size_t token, std::size_t) {
      if (token == 3) {
        throw std::runtime_error("out of memory");
      }
    };
    desk.says("Hello");
    const ModelRequest asked = read_openai_chat(chat_body());
    const auto stream = desk.gateway().stream(
        session, asked, anthropic ? anthropic_events(asked) : openai_chat_events(asked));
    const std::string events = all_events(*stream);
    const ordered_json error = data_of(events).back();
    CHECK_THAT(error["error"]["message"].get<std::string>(), Contains("out of memory"));
    CHECK_THAT(events, Contains("H"));
    CHECK_THAT(events, !Contains("[DONE]") && !Contains("message_stop"));
    CHECK(events.find("event: error") == (anthropic ? events.rfind("event: ") : std::string::npos));
    CHECK_THAT(ended(*session).failure, Contains("without a request that sampled"));
  }
}

TEST_CASE("tokens that a slow reader leaves are bounded, and come with the answer") {
  TokenFeed feed(1, 3);
  for (int64_t id = 0; id < 5; ++id) {
    feed.push({0, id, -1.0F});
  }
  CHECK(feed.wait().tokens.size() == 3);
  feed.push({0, 5, -1.0F});  // behind a gap
  feed.end_one();
  const TokenFeed::News last = feed.wait();
  CHECK(last.tokens.empty());
  CHECK(last.ended);

  test::GatewayDesk desk;
  const std::string text(ReplyStream::kMostUnread + 1000, 'x');
  desk.says(text);
  const auto session = desk.session(kLimits);
  const ModelRequest asked = read_openai_chat(chat_body());
  std::promise<void> drawn;
  desk.before_token = [&](std::size_t token, std::size_t tokens) {
    if (token + 1 == tokens) {
      drawn.set_value();
    }
  };
  const auto stream = desk.gateway().stream(session, asked, openai_chat_events(asked));
  drawn.get_future().wait();
  CHECK(joined_choices(all_events(*stream))[0]["message"]["content"] == text);
  CHECK(ended(*session).completion_ids.size() == text.size() + 1);
}

TEST_CASE("a request that nobody answers is refused, and its stream ends") {
  test::GatewayDesk desk;
  auto feed = std::make_shared<TokenFeed>(1, 3);
  auto waiting = std::make_unique<WaitingRequest>(TokenRequest{}, feed, 0);
  auto answer = waiting->future();
  waiting.reset();
  CHECK(feed->wait().ended);
  CHECK_THROWS_AS(answer.get(), RequestRefused);
}

TEST_CASE("over HTTP a piece arrives while the model draws, and a client may hang up") {
  for (const bool hangs_up : {false, true}) {
    test::GatewayDesk desk;
    LastToken last(desk);
    desk.says("Hello there");
    const auto session = desk.session();
    std::string body;
    {
      GatewayServer server("127.0.0.1:0", 2, "m", desk.gateway());
      httplib::Client client(server.url());
      client.set_read_timeout(30);
      httplib::Request request;
      request.method = "POST";
      request.path = "/sessions/" + session->id() + "/v1/chat/completions";
      request.body = chat_body().dump();
      request.set_header("Content-Type", "application/json");
      bool released = false;
      request.content_receiver = [&](const char* data, std::size_t bytes, uint64_t, uint64_t) {
        body.append(data, bytes);
        if (!released && body.find("\"H") != std::string::npos) {
          released = true;
          last.release();
          return !hangs_up;
        }
        return true;
      };
      const auto response = client.send(request);
      CHECK(released);
      CHECK(static_cast<bool>(response) == !hangs_up);
    }
    CHECK((body.find("[DONE]") == std::string::npos) == hangs_up);
    CHECK(desk.decode(ended(*session).completion_ids) == "Hello there<|im_end|>");
  }
}

}  // namespace
}  // namespace ringside::rl
