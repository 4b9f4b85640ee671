// Guards what a rollout records of a harness's requests: tokens encoded a second time, a rewritten
// history taken for the recorded one, a reply that is not recognised when it comes back.
#include "rl/gateway/gateway.h"

#include <catch2/catch.hpp>

#include "rl/gateway/anthropic_api.h"
#include "rl/gateway/openai_api.h"
#include "tests/rl/gateway/gateway_desk.h"

namespace ringside::rl {
namespace {

using Catch::Contains;
using nlohmann::ordered_json;
using Ids = std::vector<int64_t>;

using Desk = test::GatewayDesk;

ordered_json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// The reply as a client of OpenAI's gets it and sends it back.
ordered_json returned(const ModelReplies& replies, std::size_t index = 0) {
  const ordered_json answer = openai_chat_answer({.model = "m"}, replies);
  ordered_json message = answer["choices"][index]["message"];
  message.erase("reasoning_content");
  message["refusal"] = nullptr;
  return message;
}

bridge::Rollout ended(Session& session) {
  session.end({.rewards = {{"reward", 1.0}}});
  bridge::Rollout rollout;
  session.write(rollout);
  return rollout;
}

TEST_CASE("a turn continues the sampled tokens and encodes only what is new") {
  Desk desk;
  const auto session = desk.session();
  desk.says("cab");
  const ModelReplies first = desk.chat(session, ordered_json::array({message("user", "q")}));
  CHECK(first.prompt_ids == desk.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"));
  CHECK(first.replies[0].content == "cab");
  const ModelReplies second =
      desk.chat(session, {message("user", "q"), returned(first), message("user", "r")});
  Ids expected = first.prompt_ids;
  expected.insert(expected.end(), {'c', 'a', 'b', test::kTokenEnd});  // not the token "ab"
  const Ids added = desk.encode("\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n");
  expected.insert(expected.end(), added.begin(), added.end());
  CHECK(second.prompt_ids == expected);
  const bridge::Rollout rollout = ended(*session);
  CHECK(rollout.branches.empty());
  CHECK(rollout.prompt_ids == first.prompt_ids);
  CHECK(rollout.turn_offsets.size() == 2);
  CHECK(rollout.finish_reason == bridge::FinishReason::kStop);
}

TEST_CASE("a reply that was cut gets the template's end marker as context") {
  Desk desk;
  const auto session = desk.session();
  desk.says("ca...");
  const ModelReplies first =
      desk.chat(session, ordered_json::array({message("user", "q")}), {{"max_tokens", 2}});
  CHECK(first.replies[0].finish == ReplyFinish::kLength);
  const ModelReplies second =
      desk.chat(session, {message("user", "q"), returned(first), message("user", "r")});
  const Ids tail(second.prompt_ids.begin() + std::ssize(first.prompt_ids), second.prompt_ids.end());
  CHECK(desk.decode(tail) ==
        "ca<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n");
  const bridge::Rollout rollout = ended(*session);
  CHECK(rollout.loss_mask[1] == 1);
  CHECK(rollout.loss_mask[2] == 0);  // the marker that nobody sampled
}

TEST_CASE("an answer that cannot be recorded says nothing of how the rollout ended") {
  Desk desk;
  const auto session = desk.session();
  session->record({.ids = {1}}, {{{5}, {-1.0F}, 0, 0}, true});
  CHECK_THROWS_WITH(session->record({.ids = {2}}, {{{5}, {-1.0F}, 0, 0}, false}),
                    Contains("begins with another token"));
  CHECK(ended(*session).finish_reason == bridge::FinishReason::kStop);
}

TEST_CASE("reasoning stays in the tokens as long as the template keeps it, then a branch begins") {
  Desk desk;
  const auto session = desk.session();
  const ordered_json tools =
      ordered_json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  desk.says(R"(<think>hm</think><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>)");
  ordered_json messages = ordered_json::array({message("user", "q")});
  const ModelReplies first = desk.chat(session, messages, {{"tools", tools}});
  REQUIRE(first.replies[0].tool_calls.size() == 1);
  CHECK(first.replies[0].reasoning == "hm");
  CHECK(first.replies[0].finish == ReplyFinish::kToolCalls);
  messages.push_back(returned(first));  // without the reasoning; arguments as a text
  messages.push_back(
      {{"role", "tool"}, {"content", "7"}, {"tool_call_id", first.replies[0].tool_calls[0].id}});
  const ModelReplies second = desk.chat(session, messages, {{"tools", tools}});
  CHECK_THAT(desk.decode(second.prompt_ids), Contains("<think>hm</think><tool_call>"));
  messages.push_back(returned(second));
  messages.push_back(message("user", "r"));
  const ModelReplies third = desk.chat(session, messages, {{"tools", tools}});
  CHECK_THAT(desk.decode(third.prompt_ids), !Contains("<think>"));
  const bridge::Rollout rollout = ended(*session);
  REQUIRE(rollout.branches.size() == 1);
  CHECK(rollout.branches[0].context_end == 2);  // "<t" of <think> and of <tool_call>
}

// A desk whose template writes messages as `message`, and "~" at the end of a conversation.
std::string template_of(const std::string& message) {
  return "{%- for m in messages -%}{%- if m.role == 'assistant' -%}" + message +
         "{%- else -%}<|im_start|>{{ m.content }}<|im_end|>{%- endif -%}{%- endfor -%}"
         "{%- if add_generation_prompt -%}<|im_start|>A:{%- else -%}~{%- endif -%}";
}

TEST_CASE("a turn continues only where the template writes the reply behind its prompt") {
  struct Case {
    const char* written;
    const char* says;
    bool continues;
  };
  for (const auto& [written, says, continues] :
       {Case{"<|im_start|>A:{{ m.content }}<|im_end|>", "cab", true},
        {"<|im_start|>{{ m.content }}<|im_end|>", "cab", false},                     // without "A:"
        {"<|im_start|>A:{{ m.content }}<|im_end|>", "<think>hm</think>cab", false},  // drops it
        {"<|im_start|>A:<think>{{ m.reasoning_content }}</think>{{ m.content }}<|im_end|>",
         "<think>hm</think>cab", true},
        {"<|im_start|>A:{{ m.content }}!", "cab", false}}) {  // ends it in another way
    INFO(written << " " << says);
    Desk desk(test::character_tokenizer(), test::kTokenEnd, template_of(written));
    const auto session = desk.session();
    desk.says(says);
    const ModelReplies first = desk.chat(session, ordered_json::array({message("user", "q")}));
    const ModelReplies second =
        desk.chat(session, {message("user", "q"), returned(first), message("user", "r")});
    const std::string decoded = desk.decode(second.prompt_ids);
    CHECK(ended(*session).branches.empty() == continues);
    CHECK_THAT(decoded, Catch::EndsWith("<|im_start|>r<|im_end|><|im_start|>A:") && !Contains("~"));
    CHECK((decoded.find("hm") != std::string::npos) ==
          (continues && std::string(says).find("hm") != std::string::npos));
  }
}

TEST_CASE("retries, several choices and compacted histories are branches of one rollout") {
  Desk desk;
  const auto session = desk.session();
  const ordered_json asked{message("system", "s"), message("user", "q")};
  desk.says("x");
  desk.says("y");
  const ModelReplies two = desk.chat(session, asked, {{"n", 2}});
  CHECK(two.replies[0].content == "x");
  CHECK(two.replies[1].content == "y");
  desk.says("z");
  desk.chat(session, asked);
  ordered_json chosen = asked;
  chosen.push_back(returned(two, 1));  // the second choice goes on
  chosen.push_back(message("user", "r"));
  const ModelReplies after = desk.chat(session, chosen);
  CHECK_THAT(desk.decode(after.prompt_ids), Contains("assistant\ny<|im_end|>\n"));
  const ModelReplies compacted =
      desk.chat(session, {message("system", "s"), message("user", "summary")});
  const bridge::Rollout rollout = ended(*session);
  CHECK(rollout.turn_offsets.size() == 5);
  CHECK(rollout.branches.size() == 4);
  CHECK(desk.decode(rollout.prompt_ids) == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n");
}

TEST_CASE("a stop text ends a completion with the token that completes it") {
  Desk desk;
  const auto session = desk.session();
  desk.says("one\n\ntwo");
  const ModelReplies replies = desk.chat(session, ordered_json::array({message("user", "q")}),
                                         {{"stop", {"\n\n", "never"}}});
  CHECK(replies.replies[0].content == "one");
  CHECK(replies.replies[0].ids == Ids{'o', 'n', 'e', '\n', '\n'});
  CHECK(replies.replies[0].finish == ReplyFinish::kStop);
  CHECK(ended(*session).completion_ids.size() == 5);
}

TEST_CASE("a stop text that is the model's end marker is no part of the reply either") {
  Desk desk;
  const auto session = desk.session();
  desk.says("one");
  const ModelReplies replies =
      desk.chat(session, ordered_json::array({message("user", "q")}), {{"stop", "<|im_end|>"}});
  CHECK(replies.replies[0].content == "one");
  CHECK(replies.replies[0].ids == Ids{'o', 'n', 'e', test::kTokenEnd});
}

TEST_CASE("a text completion continues recorded tokens that it begins with") {
  Desk desk;
  const auto session = desk.session();
  desk.says("ca");
  const ModelReplies first =
      desk.gateway().answer(session, read_openai_completion({{"prompt", "q"}, {"max_tokens", 9}}));
  Ids ids = first.prompt_ids;
  ids.insert(ids.end(), first.replies[0].ids.begin(), first.replies[0].ids.end());
  ids.push_back('r');
  desk.gateway().answer(session, read_openai_completion({{"prompt", ids}}));
  const bridge::Rollout rollout = ended(*session);
  CHECK(rollout.branches.empty());
  CHECK(rollout.prompt_ids == Ids{'q'});
  CHECK(rollout.loss_mask == std::vector<uint8_t>{1, 1, 1, 0, 1, 1, 1});
}

TEST_CASE("a session refuses what it cannot answer, by a status and a reason") {
  Desk desk;
  const auto refused = [&](const auto& ask, int status, const std::string& why) {
    try {
      ask();
      FAIL("not refused, expected " << why);
    } catch (const RequestRefused& error) {
      CHECK(error.status() == status);
      CHECK_THAT(error.what(), Contains(why));
    }
  };
  const ordered_json asked = ordered_json::array({message("user", "q")});
  const auto session = desk.session({.max_turns = 2, .max_new_tokens = 64, .max_tokens = 60});
  desk.chat(session, asked);
  refused([&] { desk.chat(session, ordered_json::array({message("user", std::string(60, 'q'))})); },
          400, "no room for a completion");
  refused([&] { desk.chat(session, asked, {{"n", 2}}); }, 429, "max_turns");
  refused(
      [&] {
        desk.gateway().answer(session,
                              read_openai_completion({{"prompt", ordered_json::array({114})}}));
      },
      400, "another token");
  ended(*session);
  refused([&] { desk.chat(session, asked); }, 409, "has ended");
  refused([&] { Gateway::end(*session, {{"reward", 1}}); }, 409, "has ended before");
  const auto other = desk.session();
  refused(
      [&] {
        desk.gateway().answer(other,
                              read_openai_completion({{"prompt", ordered_json::array({131})}}));
      },
      400, "vocabulary");
  refused([&] { Gateway::end(*other, {{"reward", "high"}}); }, 400, "finite number");
  refused([&] { Gateway::end(*other, ordered_json::object()); }, 400, "expected {\"reward\"");
  refused(
      [&] {
        Gateway::end(*other, {{"reward", 1}, {"turn_rewards", ordered_json::array({1})}});
      },
      400, "1 turn_rewards for 0 samples");
  refused([&] { desk.desk().find("s9"); }, 404, "no session 's9'");
  refused(
      [&] {
        read_openai_chat({{"messages", ordered_json::array({message("wizard", "q")})}});
      },
      400, "messages[0]: role is \"wizard\"");
  refused(
      [&] {
        read_openai_chat({{"messages", asked}, {"top_logprobs", 3}});
      },
      400, "top_logprobs");
  refused(
      [&] {
        read_openai_chat({{"messages", asked}, {"tool_choice", "required"}});
      },
      400, "tool_choice");
  refused(
      [&] {
        read_openai_completion({{"prompt", ordered_json::array({"a", "b"})}});
      },
      400, "neither one text");
  refused([&] { read_anthropic_messages({{"messages", asked}}); }, 400, "\"max_tokens\"");
}

TEST_CASE("sessions are claimed in order, end by their time, and are refused after the run") {
  Desk desk;
  const auto first = desk.session(), second = desk.session();
  CHECK(desk.desk().claim(std::chrono::milliseconds(0)) == first);
  CHECK(desk.desk().claim(std::chrono::milliseconds(0)) == second);
  CHECK(desk.desk().claim(std::chrono::milliseconds(1)) == nullptr);
  first->end({.rewards = {{"reward", 0.5}}});
  const auto third = desk.session();
  CHECK(desk.desk().take_ended() == std::vector{first});
  desk.later = std::chrono::hours(2);
  CHECK(desk.desk().take_ended() == std::vector{second});
  CHECK(desk.desk().unclaimed_sessions() == 1);  // the time of the third has not begun
  bridge::Rollout rollout;
  second->write(rollout);
  CHECK_THAT(rollout.failure, Contains("session_timeout_s"));
  CHECK(rollout.finish_reason == bridge::FinishReason::kError);
  CHECK(desk.desk().open_sessions() == 1);
  desk.desk().close();
  CHECK_THROWS_AS(desk.desk().claim(std::chrono::milliseconds(0)), RequestRefused);
  CHECK_THROWS_AS(desk.desk().sample({TokenRequest{}}), RequestRefused);
}

TEST_CASE("Anthropic's blocks become the same conversation as OpenAI's messages") {
  const ModelRequest asked = read_anthropic_messages(ordered_json::parse(R"({
      "max_tokens": 9, "system": [{"type": "text", "text": "s"}],
      "tools": [{"name": "f", "description": "d", "input_schema": {"a": 1}}],
      "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": ""},
          {"type": "text", "text": "t"},
          {"type": "tool_use", "id": "i", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "i", "content": "7"},
          {"type": "text", "text": "r"}]}]})"));
  const ModelRequest same = read_openai_chat(ordered_json::parse(R"({
      "max_tokens": 9,
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": 1}}}],
      "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "t", "reasoning_content": "hm", "tool_calls": [
          {"id": "i", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "content": "7", "tool_call_id": "i"},
        {"role": "user", "content": [{"type": "text", "text": "r"}]}]})"));
  CHECK(asked.asked.messages == same.asked.messages);
  CHECK(asked.asked.tools == same.asked.tools);
  CHECK(asked.max_tokens == 9);
}

}  // namespace
}  // namespace ringside::rl
