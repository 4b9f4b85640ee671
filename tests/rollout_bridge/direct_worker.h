// A WorkerState without sockets or threads: a test says the trainer's messages and reads what the
// worker would send, in the order and at the time it chooses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/worker/worker_state.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge::test {

class DirectWorker {
 public:
  explicit DirectWorker(const WorkerOptions& options = worker_options("tcp://127.0.0.1:1", "w"))
      : state_(options) {}

  WorkerState& state() { return state_; }
  Clock::time_point now() const { return now_; }
  void advance(std::chrono::milliseconds by) { now_ += by; }

  // A session of the trainer's start `trainer_term`, up to its WELCOME.
  void join(int64_t trainer_term = 1) {
    trainer_term_ = trainer_term;
    seq_ = 0;
    state_.open_session();
    sent();
    WelcomeBody welcome;
    welcome.heartbeat_ms = 1000;
    welcome.timeout_ms = 10000;
    welcome.window_bytes = 1 << 20;
    welcome.chunk_bytes = 4096;
    say(make_payload(MessageType::kWelcome, welcome));
  }
  void cut() { state_.disconnect("cut", now_); }
  void say(const Payload& payload) {
    const std::string header = pack_header(
        {payload.type, "run", trainer_term_, "w", state_.session().incarnation(), ++seq_}, payload);
    state_.on_message(parse_message(std::vector<Frame>{std::as_bytes(std::span(header))}, {}),
                      now_);
  }
  // An ERROR is outside the numbers of the session.
  void error(const ErrorBody& body) {
    const Payload payload = make_payload(MessageType::kError, body);
    const std::string header = pack_header(
        {payload.type, "run", trainer_term_, "w", state_.session().incarnation(), 0}, payload);
    state_.on_message(parse_message(std::vector<Frame>{std::as_bytes(std::span(header))}, {}),
                      now_);
  }
  void grant(int64_t group, std::vector<int32_t> samples, int32_t attempt = 0) {
    CreditBody credit;
    credit.groups.push_back({group, 4, 0, attempt, std::move(samples)});
    say(make_payload(MessageType::kCredit, credit));
  }
  void ack(const std::string& rollout_id, const std::string& status) {
    say(make_payload(MessageType::kAck, AckBody{rollout_id, status, "", ""}));
  }
  // Every message that waits to be sent; they are taken for sent.
  std::vector<MessageType> sent() {
    state_.tick(now_);
    std::vector<MessageType> types;
    while (state_.session().front() != nullptr) {
      types.push_back(state_.session().front()->type);
      state_.session().sent_front(now_);
    }
    return types;
  }
  // All samples of the grants that the owner has not seen yet; other events are dropped.
  std::vector<std::pair<int64_t, int32_t>> granted() {
    std::vector<std::pair<int64_t, int32_t>> samples;
    while (const auto event = state_.poll()) {
      const auto* granted = std::get_if<Granted>(&*event);
      if (granted == nullptr) {
        continue;
      }
      for (const Grant& group : granted->groups) {
        for (const int32_t sample : group.sample_indices) {
          samples.emplace_back(group.group_id, sample);
        }
      }
    }
    return samples;
  }

 private:
  WorkerState state_;
  Clock::time_point now_ = Clock::now();
  int64_t trainer_term_ = 1;
  uint64_t seq_ = 0;
};

}  // namespace ringside::bridge::test
