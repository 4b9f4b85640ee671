#include "rl/gateway/gateway.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "rl/gateway/request_fields.h"

namespace ringside::rl {
namespace {

using nlohmann::ordered_json;

double number_of(const ordered_json& value, const std::string& what) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    throw RequestRefused(400, what + " is " + value.dump() + ", expected a finite number");
  }
  return value.get<double>();
}

}  // namespace

Gateway::Gateway(SessionDesk& desk, ChatText& text, std::string parser)
    : desk_(desk), text_(text), parser_(std::move(parser)) {}

PendingAnswer Gateway::begin(const std::shared_ptr<Session>& session, ModelRequest asked) {
  return {session, std::move(asked), text_, parser_};
}

ModelReplies Gateway::answer(const std::shared_ptr<Session>& session, ModelRequest asked) {
  PendingAnswer pending = begin(session, std::move(asked));
  return pending.record(desk_.sample(pending.requests()));
}

std::unique_ptr<ReplyStream> Gateway::stream(const std::shared_ptr<Session>& session,
                                             ModelRequest asked,
                                             std::unique_ptr<EventWriter> writer) {
  return std::make_unique<ReplyStream>(begin(session, std::move(asked)), desk_, std::move(writer));
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
