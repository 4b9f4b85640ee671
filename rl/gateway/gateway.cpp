#include "rl/gateway/gateway.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "rl/gateway/request_fields.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kNoLimit = int64_t{1} << 31;

double number_of(const ordered_json& value, const std::string& what) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    throw RequestRefused(400, what + " is " + value.dump() + ", expected a finite number");
  }
  return value.get<double>();
}

// One name for all answers of a request: from the seed of its first sample.
std::string answer_id(uint64_t seed) {
  char text[32];
  std::snprintf(text, sizeof text, "chatcmpl-%016llx", static_cast<unsigned long long>(seed));
  return text;
}

int64_t seconds_since_1970() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Gateway::Gateway(SessionDesk& desk, ChatText& text, std::string parser)
    : desk_(desk), text_(text), parser_(std::move(parser)) {}

ChatTurns::Context Gateway::context_of(const Session& session, const ModelRequest& asked) {
  if (!asked.asked.empty()) {
    return session.context(text_, asked.asked);
  }
  if (!asked.prompt_ids.empty()) {
    return {.ids = asked.prompt_ids};
  }
  try {
    return {.ids = text_.encode(asked.prompt)};
  } catch (const std::exception& error) {
    throw RequestRefused(400, error.what());
  }
}

bool PendingReplies::are_sampled() const {
  return std::ranges::all_of(answers, [](const auto& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
}

ModelReplies Gateway::answer(Session& session, const ModelRequest& asked) {
  return finish(session, begin(session, asked));
}

PendingReplies Gateway::begin(Session& session, const ModelRequest& asked) {
  PendingReplies pending;
  pending.asked = asked;
  pending.context = context_of(session, asked);
  const int64_t limit = asked.max_tokens > 0 ? asked.max_tokens : kNoLimit;
  pending.requests = session.begin(pending.context, limit, asked.count);
  pending.parser = reply_parser(parser_, asked, pending.requests.front().prompt, text_.tokenizer());
  pending.answers = desk_.submit(pending.requests);
  return pending;
}

ModelReplies Gateway::finish(Session& session, PendingReplies pending) {
  const ModelRequest& asked = pending.asked;
  const std::vector<TokenRequest>& requests = pending.requests;
  std::vector<TokenAnswer> answers = SessionDesk::take(std::move(pending.answers));
  ModelReplies replies{
      answer_id(requests.front().seed), seconds_since_1970(), requests.front().prompt, {}};
  for (std::size_t i = 0; i < answers.size(); ++i) {
    TokenAnswer& answer = answers[i];
    const std::string stop = cut_at_stop(answer, asked.stops, text_.tokenizer());
    ModelReply reply =
        read_reply(answer, stop, asked, text_.tokenizer(), pending.parser, requests[i].seed);
    const int64_t end = session.record(pending.context, answer);
    if (!asked.asked.empty()) {
      const auto stop_id = answer.stopped ? std::optional(answer.sampled.ids.back()) : std::nullopt;
      session.add_reply(pending.context.conversation, reply_message(reply), end, stop_id);
    }
    replies.replies.push_back(std::move(reply));
  }
  return replies;
}

ordered_json Gateway::claimed(const Session& session) {
  const bridge::GrantedSample& sample = session.sample();
  return {{"session", session.id()},
          {"group", sample.group_id},
          {"sample", sample.sample_index},
          {"group_size", sample.group_size},
          {"evaluation", sample.held_out >= 0},
          {"record", session.data_record()}};
}

void Gateway::end(Session& session, const ordered_json& body) {
  const RequestFields fields(body);
  SessionResult result;
  result.failure = fields.text("failure");
  if (const ordered_json* reward = fields.find("reward")) {
    result.rewards.emplace_back("reward", number_of(*reward, "reward"));
  }
  if (const ordered_json* rewards = fields.find("rewards")) {
    for (const auto& [name, value] : rewards->items()) {
      result.rewards.emplace_back(name, number_of(value, "rewards." + name));
    }
  }
  if (const ordered_json* of_turns = fields.find("turn_rewards")) {
    for (const ordered_json& value : *of_turns) {
      result.turn_rewards.push_back(number_of(value, "an element of turn_rewards"));
    }
  }
  if (result.failure.empty() == result.rewards.empty()) {
    throw RequestRefused(400,
                         "expected {\"reward\": number}, {\"rewards\": {name: number}} or "
                         "{\"failure\": why}");
  }
  if (!session.end(std::move(result))) {
    throw RequestRefused(409, "session " + session.id() + " has ended before");
  }
}

}  // namespace ringside::rl
