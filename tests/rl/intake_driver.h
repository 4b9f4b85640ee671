// A live intake and a worker that a test speaks for, for the tests of what a trainer start takes
// and refuses.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "rl/rollouts/rollout_intake.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::test {

using namespace bridge::test;

using Sample = std::pair<int64_t, int32_t>;

inline rl::StepRules make_rules(int64_t prompts, int64_t max_staleness,
                                int64_t restored_version = 0) {
  rl::StepRules rules;
  rules.prompts_per_step = prompts;
  rules.group_size = 2;
  rules.max_staleness = max_staleness;
  rules.first_step = restored_version + 1;
  rules.total_reward = [](const bridge::Rollout& r) { return r.rewards.at(0).second; };
  return rules;
}

// newest_of_term: of the starts before, see TrainerOptions.
inline bridge::TrainerOptions options_of(const TempDir& dir, int64_t trainer_term,
                                         std::map<int64_t, int64_t> newest_of_term = {}) {
  auto options = trainer_options(dir);
  options.trainer_term = trainer_term;
  options.newest_of_term = std::move(newest_of_term);
  return options;
}

inline bridge::TrainerOptions with_policy(bridge::TrainerOptions options,
                                          const rl::StepRules& rules) {
  options.policy = rl::step_policy(rules);
  return options;
}

// A worker that answers nothing by itself: the test takes its grants and sends what it likes.
class FakeWorker {
 public:
  FakeWorker(rl::RolloutIntake& intake, int64_t capacity)
      : FakeWorker(intake.endpoint().rollout_address(), capacity) {}
  FakeWorker(const std::string& address, int64_t capacity)
      : endpoint_([&] {
          auto options = worker_options(address, "fake");
          options.capacity_samples = capacity;
          return options;
        }()) {}

  // Waits until `count` more samples are granted, installing weights as they come; fewer when the
  // patience runs out.
  std::set<Sample> take_grants(std::size_t count, std::chrono::milliseconds patience = kPatience) {
    std::set<Sample> samples;
    const auto until = std::chrono::steady_clock::now() + patience;
    while (samples.size() < count && std::chrono::steady_clock::now() < until) {
      const auto event = endpoint_.poll(std::chrono::milliseconds(20));
      if (!event) {
        continue;
      }
      if (const auto* ready = std::get_if<bridge::WeightsReady>(&*event)) {
        version_ = ready->snapshot->manifest.version;
        (void)endpoint_.commit_weights(version_, root_hash_of(named(*ready->snapshot)));
      }
      if (const auto* granted = std::get_if<bridge::Granted>(&*event)) {
        for (const auto& group : granted->groups) {
          for (const int32_t s : group.sample_indices) {
            samples.insert({group.group_id, s});
          }
        }
      }
    }
    return samples;
  }

  void send(Sample sample, int64_t version, double reward,
            bridge::FinishReason reason = bridge::FinishReason::kStop, int32_t group_size = 2) {
    auto r = make_rollout(sample.first, sample.second, group_size, ++sent_);
    r.versions = {{version, 0, static_cast<int64_t>(r.completion_ids.size())}};
    r.trainer_term = -1;
    r.rewards = {{"reward", reward}};
    r.finish_reason = reason;
    REQUIRE(endpoint_.send_rollout(r, kPatience).ok());
  }
  // As it is.
  void send(const bridge::Rollout& rollout) {
    REQUIRE(endpoint_.send_rollout(rollout, kPatience).ok());
  }
  // The two samples of a group.
  void send_group(int64_t group, int64_t version, double first, double second) {
    send({group, 0}, version, first);
    send({group, 1}, version, second);
  }

  bool drain() {
    return eventually([this] { return endpoint_.pending() == 0; });
  }
  std::size_t pending() const { return endpoint_.pending(); }
  int64_t version() const { return version_; }

 private:
  int64_t version_ = -1;
  uint32_t sent_ = 0;
  bridge::WorkerEndpoint endpoint_;
};

inline void publish(rl::RolloutIntake& intake, int64_t trainer_term, int64_t version) {
  intake.publish(bridge::make_snapshot("run", trainer_term, version, make_tensors(version)),
                 version + 1);
}

// The rollouts of a step; nullopt when they are not complete within `timeout`.
inline std::optional<std::vector<bridge::Rollout>> take_step(rl::RolloutIntake& intake,
                                                             int64_t step,
                                                             std::chrono::milliseconds timeout) {
  const auto messages = intake.poll(step, timeout);
  return messages ? std::optional(bridge::read_rollouts(*messages).value()) : std::nullopt;
}

// Rollouts that the bridge did not take because their weights are too old or lost.
inline uint64_t refused_as_stale(const rl::RolloutIntake& intake) {
  return intake.counters().bridge.value().rejected[static_cast<std::size_t>(
      bridge::Reason::kStale)];
}

inline std::set<Sample> samples_of(int64_t first, int64_t end) {
  std::set<Sample> out;
  for (int64_t g = first; g < end; ++g) {
    out.insert({g, 0});
    out.insert({g, 1});
  }
  return out;
}

inline std::set<Sample> samples_in(const std::vector<bridge::Rollout>& rollouts) {
  std::set<Sample> out;
  for (const auto& r : rollouts) {
    out.insert({r.group_id, r.sample_index});
  }
  return out;
}

}  // namespace ringside::test
