// A TrainerState without sockets or threads: a test says a worker's messages and reads the answers,
// in the order and at the time it chooses.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/trainer_state.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge::test {

class DirectTrainer : private HandGranted {
 public:
  explicit DirectTrainer(TrainerOptions options)
      : HandGranted(options),
        trainer_term_(options.trainer_term),
        state_(options, "tcp://127.0.0.1:1") {}

  TrainerState& state() { return state_; }
  void grant(const std::vector<TestGroup>& groups) { state_.open_steps(1, grants.add(groups)); }
  // The next rollout in order of arrival; nullopt when there is none.
  std::optional<Rollout> pop() {
    state_.collect();
    return admitted->take(state_.counters().groups.delivered);
  }
  void publish(int64_t version) {
    state_.publish(make_snapshot("run", trainer_term_, version, make_tensors(version)));
  }
  void advance(std::chrono::milliseconds by) { now_ += by; }
  void tick() { state_.tick(now_); }

  void hello(const std::string& worker, int64_t capacity = 4, int64_t pending = 0) {
    seq_[worker] = 0;
    say(worker,
        make_payload(MessageType::kHello, HelloBody{capacity, -1, -1, "", "direct", pending}));
  }
  void hello(const std::string& worker, const Settings& settings) {
    seq_[worker] = 0;
    say(worker,
        make_payload(MessageType::kHello, HelloBody{4, -1, -1, "", "direct", 0, {settings}}));
  }
  void say(const std::string& worker, const Payload& payload) {
    say_as(worker + "/1", {payload.type, "run", trainer_term_, worker, 1, ++seq_[worker]}, payload);
  }
  // A message whose header need not fit its routing id.
  void say_as(const std::string& routing_id, const Header& header, const Payload& payload) {
    const std::string packed = pack_header(header, payload);
    std::vector<Frame> frames = {std::as_bytes(std::span(packed))};
    for (const Buffer& buffer : payload.buffers) {
      frames.push_back(buffer.bytes);
    }
    state_.on_message(routing_id, "", parse_message(frames, {}), now_);
  }
  void heartbeat(const std::string& worker, const std::string& word, int64_t age_ms = 0,
                 int64_t pending = 0) {
    say(worker, make_payload(MessageType::kHeartbeat, HeartbeatBody{word, 0, 0, age_ms, pending}));
  }
  // What a worker says that installed `version` as it was published.
  void commit(const std::string& worker, int64_t version) {
    const std::string root =
        make_snapshot("run", trainer_term_, version, make_tensors(version))->manifest.root_hash;
    say(worker, make_payload(MessageType::kCommitted, WeightsBody{version, root}));
  }
  void ready(const std::string& worker, int64_t version) {
    say(worker, make_payload(MessageType::kReady, ReadyBody{version}));
  }
  // From HELLO to READY under `version`.
  void bring_in(const std::string& worker, int64_t version, int64_t capacity = 4) {
    hello(worker, capacity);
    commit(worker, version);
    ready(worker, version);
  }
  // The answer to a rollout.
  AckBody deliver(const std::string& worker, const Rollout& rollout) {
    (void)bodies<AckBody>(worker, MessageType::kAck);
    say(worker, encode_rollout(rollout));
    const auto acks = bodies<AckBody>(worker, MessageType::kAck);
    return acks.empty() ? AckBody{} : acks.back();
  }

  // The bodies of all messages of `type` that wait for the worker; the messages of every type are
  // gone then.
  template <class Body>
  std::vector<Body> bodies(const std::string& worker, MessageType type) {
    std::vector<Body> out;
    const auto session = state_.sessions().find(worker + "/1");
    if (session == state_.sessions().end()) {
      return out;
    }
    for (const Outgoing& message : session->second.outbox) {
      if (message.payload.type != type) {
        continue;
      }
      std::vector<Frame> frames = {std::as_bytes(std::span(message.header))};
      for (const Buffer& buffer : message.payload.buffers) {
        frames.push_back(buffer.bytes);
      }
      out.push_back(parse_message(frames, {}).value().template body<Body>().value());
    }
    session->second.outbox.clear();
    return out;
  }
  // The samples that the CREDITs waiting for the worker name; the messages are gone then.
  std::set<std::pair<int64_t, int32_t>> take_credits(const std::string& worker) {
    std::set<std::pair<int64_t, int32_t>> samples;
    for (const CreditBody& credit : bodies<CreditBody>(worker, MessageType::kCredit)) {
      for (const Grant& group : credit.groups) {
        for (const int32_t sample : group.sample_indices) {
          samples.insert({group.group_id, sample});
        }
      }
    }
    return samples;
  }
  int64_t in_flight(const std::string& worker) {
    for (const WorkerStatus& status : state_.workers()) {
      if (status.worker_id == worker) {
        return status.in_flight_samples;
      }
    }
    return 0;
  }
  // Events since the last call that hold `words`.
  std::size_t events_with(const std::string& words) {
    std::size_t count = 0;
    for (const BridgeEvent& event : state_.drain_events()) {
      if (event.text.find(words) != std::string::npos) {
        ++count;
      }
    }
    return count;
  }
  // "" for one that has no session.
  std::string state_of(const std::string& worker) {
    for (const WorkerStatus& status : state_.workers()) {
      if (status.worker_id == worker) {
        return status.state;
      }
    }
    return "";
  }
  uint64_t rejected(Reason reason) {
    return state_.counters().rejected[static_cast<std::size_t>(reason)];
  }

 private:
  int64_t trainer_term_;
  TrainerState state_;
  Clock::time_point now_ = Clock::now();
  std::map<std::string, uint64_t> seq_;
};

// A rollout under one version of the running start.
inline Rollout rollout_under(int64_t version, int64_t group, int32_t sample, int32_t group_size,
                             uint32_t seed = 1) {
  Rollout r = make_rollout(group, sample, group_size, seed);
  r.versions = {{version, 0, static_cast<int64_t>(r.completion_ids.size())}};
  r.trainer_term = 1;
  return r;
}

}  // namespace ringside::bridge::test
