// A worker's link to a trainer that the test plays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/worker/trainer_link.h"

namespace ringside::rl::test {

class FakeLink final : public bridge::TrainerLink {
 public:
  std::optional<bridge::WorkerEvent> next_event() override {
    if (events.empty()) {
      return std::nullopt;
    }
    auto event = std::move(events.front());
    events.pop_front();
    return event;
  }
  bool has_room() const override { return sent.size() < room; }
  bridge::Status send(const bridge::Rollout& rollout) override {
    sent.push_back(rollout);
    return bridge::Success{};
  }
  bridge::Status commit_weights(int64_t version, const std::string&) override {
    committed.push_back(version);
    return bridge::Success{};
  }
  void pause() override {}
  void resume() override {}
  void set_queue_depth(int64_t) override {}

  std::deque<bridge::WorkerEvent> events;
  std::size_t room = 1000;
  std::vector<bridge::Rollout> sent;
  std::vector<int64_t> committed;
};

}  // namespace ringside::rl::test
