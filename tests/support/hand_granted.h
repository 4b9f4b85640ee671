// Groups that a test grants one by one, of any size, as the GroupPolicy of a trainer; and the
// rollouts that this trainer has taken, one by one.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::bridge::test {

struct TestGroup {
  int64_t group_id = -1;
  int32_t group_size = 0;
  int64_t min_version = 0;
  int64_t step = 0;  // that trains on it; 0: a step of its own, in the order of the grants
};

// Copies share the groups. Thread safety: every method.
class HandGrants {
 public:
  // ungranted_size: of the groups that nobody granted; a journal may hold rollouts of them.
  explicit HandGrants(int32_t ungranted_size = 4) : table_(std::make_shared<Table>()) {
    table_->ungranted_size = ungranted_size;
  }
  // Of a policy that policy() made; a new one for a policy that is not set.
  static HandGrants of(const GroupPolicy& policy) {
    const auto* found = policy.rule_of.target<RuleOf>();
    return found == nullptr ? HandGrants() : HandGrants(found->table);
  }
  GroupPolicy policy() const {
    return {.rule_of = RuleOf{table_},
            .first_groups =
                [table = table_](int64_t step) {
                  const std::lock_guard lock(table->mutex);
                  return std::vector{table->of_step.at(static_cast<std::size_t>(step - 1))};
                },
            .reward_of = [](const Rollout&) { return std::nullopt; },
            .teaches_nothing = [](std::span<const std::optional<double>>) { return false; }};
  }
  // Returns the step to open up to.
  int64_t add(const std::vector<TestGroup>& groups) {
    const std::lock_guard lock(table_->mutex);
    for (const TestGroup& group : groups) {
      table_->of_step.push_back(group.group_id);
      const auto last = static_cast<int64_t>(table_->of_step.size());
      table_->rules[group.group_id] = {.step = group.step != 0 ? group.step : last,
                                       .first_group = group.group_id,
                                       .group_size = group.group_size,
                                       .min_version = group.min_version,
                                       .max_version = INT64_MAX};
    }
    return static_cast<int64_t>(table_->of_step.size());
  }
  int64_t steps() const {
    const std::lock_guard lock(table_->mutex);
    return static_cast<int64_t>(table_->of_step.size());
  }

 private:
  struct Table {
    std::mutex mutex;
    int32_t ungranted_size = 4;
    std::map<int64_t, GroupRule> rules;
    std::vector<int64_t> of_step;
  };
  struct RuleOf {
    std::shared_ptr<Table> table;
    GroupRule operator()(int64_t group_id) const {
      const std::lock_guard lock(table->mutex);
      const auto found = table->rules.find(group_id);
      if (found != table->rules.end()) {
        return found->second;
      }
      return {.step = INT64_MAX,
              .first_group = group_id,
              .group_size = table->ungranted_size,
              .max_version = INT64_MAX};
    }
  };
  explicit HandGrants(std::shared_ptr<Table> table) : table_(std::move(table)) {}

  std::shared_ptr<Table> table_;
};

// Keeps what it admits, latest last. One that is sent again after BUSY counts once.
// Thread safety: every method.
class AdmittedRollouts final : public AdmissionPolicy {
 public:
  // inner: null admits all.
  explicit AdmittedRollouts(std::shared_ptr<AdmissionPolicy> inner) : inner_(std::move(inner)) {}
  Status admit(const Rollout& rollout) override {
    Status status = inner_ ? inner_->admit(rollout) : Status(Success{});
    const std::lock_guard lock(mutex_);
    std::erase_if(rollouts_, [&](const Rollout& r) { return r.rollout_id == rollout.rollout_id; });
    if (status) {
      rollouts_.push_back(rollout);
    }
    return status;
  }
  Status admit_held_out(const Rollout& rollout, int64_t held_out) override {
    return inner_ ? inner_->admit_held_out(rollout, held_out) : Status(Success{});
  }
  // The oldest that was not taken; nullopt when as many as were `delivered` have been.
  std::optional<Rollout> take(int64_t delivered) {
    const std::lock_guard lock(mutex_);
    if (taken_ >= delivered || rollouts_.empty()) {
      return std::nullopt;
    }
    ++taken_;
    Rollout rollout = std::move(rollouts_.front());
    rollouts_.pop_front();
    return rollout;
  }

 private:
  std::shared_ptr<AdmissionPolicy> inner_;
  std::mutex mutex_;
  std::deque<Rollout> rollouts_;
  int64_t taken_ = 0;
};

// What a hand-granted trainer needs besides its options.
struct HandGranted {
  // Puts its policy, where the options have none, and its admission in the options.
  explicit HandGranted(TrainerOptions& options)
      : grants(HandGrants::of(options.policy)),
        admitted(std::make_shared<AdmittedRollouts>(options.admission)) {
    if (!options.policy.rule_of) {
      options.policy = grants.policy();
    }
    options.admission = admitted;
  }
  HandGrants grants;
  std::shared_ptr<AdmittedRollouts> admitted;
};

// A TrainerEndpoint whose groups are granted by hand.
class TestTrainer : private HandGranted, public TrainerEndpoint {
 public:
  // Throws: as TrainerEndpoint.
  explicit TestTrainer(TrainerOptions options)
      : HandGranted(options), TrainerEndpoint(std::move(options)) {}

  // Opens a step for these groups.
  void grant(const std::vector<TestGroup>& groups) { open_steps(1, grants.add(groups)); }
  // The next rollout in order of arrival. nullopt after `timeout`.
  std::optional<Rollout> pop(std::chrono::milliseconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (true) {
      const std::chrono::milliseconds none{0};
      while (next_step_ <= grants.steps() && take(next_step_, none)) {
        ++next_step_;  // their rollouts take no room any more
      }
      if (auto rollout = admitted->take(counters().groups.delivered)) {
        return rollout;
      }
      if (std::chrono::steady_clock::now() >= until) {
        return std::nullopt;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Waits until `min_workers` workers have installed `version` or a later one. False after
  // `timeout`.
  bool wait_for_commit(int64_t version, int64_t min_workers,
                       std::chrono::milliseconds timeout) const {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (true) {
      const auto all = workers();
      const auto committed = std::count_if(all.begin(), all.end(), [&](const WorkerStatus& worker) {
        return worker.state != "bye" && worker.version >= version;
      });
      if (committed >= min_workers) {
        return true;
      }
      if (std::chrono::steady_clock::now() >= until) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  int64_t next_step_ = 1;  // to be taken
};

}  // namespace ringside::bridge::test
