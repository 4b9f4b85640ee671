// Guards the steps of the ledger under step_policy(): a step taken before its groups are whole or
// out of order, a rollout trained on beyond the staleness window, a group left half old and half
// new, and rounds of refill that are lost, counted twice or granted twice.
#include <catch2/catch.hpp>

#include "rl/rollouts/step_policy.h"
#include "rollout_bridge/trainer/group_ledger.h"

using namespace ringside;
using bridge::Origin;
using bridge::Reason;
using bridge::Verdict;
using rl::kRoundStride;
using Ids = std::vector<int64_t>;

namespace {

// Two groups of two a step; step 11 is next.
rl::StepRules make_rules(int64_t max_staleness) { return {2, 2, max_staleness, 11}; }

// The same with `rounds` prompts a slot, judged by the first reward.
rl::StepRules make_refilling(int64_t rounds, int64_t max_staleness = 0) {
  rl::StepRules rules = make_rules(max_staleness);
  rules.refill_rounds = rounds;
  rules.total_reward = [](const bridge::Rollout& r) {
    return r.rewards.empty() ? std::nullopt : std::optional(r.rewards[0].second);
  };
  return rules;
}

bridge::Rollout make_rollout(int64_t group, int32_t sample, int64_t version) {
  static int64_t made = 0;
  bridge::Rollout r;
  r.rollout_id = std::to_string(++made);
  r.group_id = group;
  r.group_size = 2;
  r.sample_index = sample;
  r.completion_ids = {1};
  r.versions = {{version, 0, 1}};
  r.trainer_term = 3;
  return r;
}

bridge::Rollout rewarded(int64_t group, int32_t sample, double reward, int64_t version = 10) {
  auto r = make_rollout(group, sample, version);
  r.rewards = {{"reward", reward}};
  return r;
}

// A ledger of trainer term 3 that is given rollouts as a journal gives them.
class Steps {
 public:
  explicit Steps(const rl::StepRules& rules)
      : ledger_({.max_attempts = 3, .trainer_term = 3, .policy = rl::step_policy(rules)},
                consumed_) {}

  bridge::GroupLedger& ledger() { return ledger_; }

  // What judge() says; the rollout is delivered when it is new.
  bridge::Result<Verdict> add(bridge::Rollout rollout) {
    const auto verdict = ledger_.judge(rollout, "", Origin::kJournal);
    if (verdict && verdict.value() == Verdict::kNew) {
      const Ids replacements = ledger_.deliver(rollout, bridge::flatten_rollout(rollout));
      granted_.insert(granted_.end(), replacements.begin(), replacements.end());
    }
    return verdict;
  }
  bool takes(bridge::Rollout rollout) {
    const auto verdict = add(std::move(rollout));
    return verdict && verdict.value() == Verdict::kNew;
  }
  bool is_duplicate(bridge::Rollout rollout) {
    const auto verdict = add(std::move(rollout));
    return verdict && verdict.value() == Verdict::kDuplicate;
  }
  bool refuses(bridge::Rollout rollout, Reason reason) {
    const auto verdict = add(std::move(rollout));
    return !verdict && verdict.error().reason == reason;
  }
  // Both samples of a group.
  void add_group(int64_t group, double first, double second) {
    CHECK(takes(rewarded(group, 0, first)));
    CHECK(takes(rewarded(group, 1, second)));
  }
  std::optional<std::vector<bridge::Rollout>> take(int64_t step) {
    const auto taken = ledger_.take(step);
    const auto messages = taken ? std::optional(taken->rollouts) : std::nullopt;
    return messages ? std::optional(bridge::read_rollouts(*messages).value()) : std::nullopt;
  }
  // Opens the steps up to `step`; the groups that are granted for it.
  Ids open(int64_t step) { return ledger_.open_steps(step); }
  // Replacements granted since the last call.
  Ids granted() { return std::exchange(granted_, {}); }
  int64_t waiting() const { return ledger_.counters().waiting; }

 private:
  bridge::IdSet consumed_;
  bridge::GroupLedger ledger_;
  Ids granted_;
};

}  // namespace

TEST_CASE("a step is taken whole and in order, however its rollouts arrive", "[steps]") {
  Steps steps(make_rules(0));
  for (const auto& [group, sample] :
       std::vector<std::pair<int64_t, int32_t>>{{21, 1}, {20, 1}, {21, 0}}) {
    CHECK(steps.takes(make_rollout(group, sample, 10)));
    CHECK_FALSE(steps.take(11).has_value());
  }
  CHECK(steps.is_duplicate(make_rollout(21, 0, 10)));
  CHECK(steps.takes(make_rollout(20, 0, 10)));
  const auto step = steps.take(11);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK((*step)[i].group_id == 20 + static_cast<int64_t>(i / 2));
    CHECK((*step)[i].sample_index == static_cast<int32_t>(i % 2));
  }
  CHECK(steps.waiting() == 0);
  CHECK(steps.is_duplicate(make_rollout(20, 0, 10)));
  CHECK(steps.is_duplicate(make_rollout(19, 0, 9)));  // of a step before this start's first
  CHECK_THROWS_WITH(steps.take(11), Catch::Contains("step 12 is next"));
}

TEST_CASE("with a curriculum a step is made of the groups that it chose, in their order",
          "[steps]") {
  rl::StepRules rules = make_rules(1);
  const int64_t first = 20 + 7 * kRoundStride, second = 21 + 3 * kRoundStride;
  rules.chosen_groups = [=](int64_t step) {
    return step == 11 ? Ids{first, second} : Ids{22 + kRoundStride, 23};
  };
  Steps steps(rules);
  CHECK(steps.open(11) == Ids{first, second});
  CHECK(steps.open(12) == Ids{22 + kRoundStride, 23});
  steps.add_group(second, 1.0, 1.0);
  CHECK(steps.takes(rewarded(23, 0, 1.0)));
  CHECK_FALSE(steps.take(11).has_value());
  steps.add_group(first, 0.0, 0.0);  // of equal rewards: nothing replaces it
  CHECK(steps.granted().empty());
  const auto step = steps.take(11);
  REQUIRE(step.has_value());
  CHECK((*step)[0].group_id == first);
  CHECK((*step)[2].group_id == second);
  CHECK(steps.is_duplicate(rewarded(first, 0, 1.0)));
  CHECK(steps.ledger().checkpointed(11) == Ids{first, second});
  rules.refill_rounds = 2;
  rules.total_reward = [](const bridge::Rollout&) { return std::optional(0.0); };
  CHECK_THROWS_WITH(rl::step_policy(rules), Catch::Contains("a curriculum chooses"));
}

TEST_CASE("a ledger whose policy lacks a rule cannot be made", "[steps]") {
  const bridge::IdSet consumed;
  bridge::GroupPolicy policy = rl::step_policy(make_rules(0));
  policy.first_groups = nullptr;
  CHECK_THROWS_WITH(bridge::GroupLedger({.policy = policy}, consumed),
                    Catch::Contains("a function is not set"));
}

TEST_CASE("the staleness window is closed on both sides", "[steps]") {
  Steps strict(make_rules(0));
  CHECK(strict.refuses(make_rollout(20, 0, 9), Reason::kStale));
  CHECK(strict.refuses(make_rollout(20, 0, 11), Reason::kStale));  // from the future of step 11
  Steps loose(make_rules(2));
  CHECK(loose.takes(make_rollout(20, 0, 8)));
  CHECK(loose.refuses(make_rollout(20, 1, 7), Reason::kStale));
  CHECK(loose.takes(make_rollout(24, 0, 10)));
  CHECK(loose.refuses(make_rollout(26, 0, 10), Reason::kStale));  // step 14 wants version 11
}

TEST_CASE("a stale sample is refused alone, its siblings stay", "[steps]") {
  Steps steps(make_rules(1));
  CHECK(steps.takes(make_rollout(20, 0, 10)));
  const auto stale = steps.add(make_rollout(20, 1, 8));
  REQUIRE_FALSE(stale.ok());
  CHECK_THAT(stale.error().detail, Catch::Contains("version 8, group 20 wants 9 or later"));
  CHECK(steps.waiting() == 1);
  CHECK(steps.open(11) == Ids{20, 21});
  CHECK(steps.takes(make_rollout(20, 1, 10)));
  CHECK(steps.takes(make_rollout(21, 0, 10)));
  CHECK(steps.takes(make_rollout(21, 1, 10)));
  CHECK(steps.take(11).has_value());
  CHECK(steps.ledger().counters().delivered == 4);
}

TEST_CASE("one old span makes the whole rollout stale", "[steps]") {
  Steps steps(make_rules(1));
  auto rollout = make_rollout(20, 0, 9);
  rollout.versions = {{8, 0, 1}, {10, 1, 2}};
  CHECK(steps.refuses(rollout, Reason::kStale));
}

TEST_CASE("a rollout of a group of another size is refused, the group keeps what fits", "[steps]") {
  Steps steps(make_rules(0));
  CHECK(steps.takes(make_rollout(20, 0, 10)));
  for (const int32_t size : {1, 3}) {
    auto other = make_rollout(size == 1 ? 20 : 21, 0, 10);
    other.group_size = size;
    CHECK(steps.refuses(other, Reason::kInvalidField));
  }
  CHECK(steps.waiting() == 1);
  CHECK(steps.takes(make_rollout(20, 1, 10)));
  steps.add_group(21, 0.0, 1.0);
  CHECK(steps.take(11).has_value());
}

TEST_CASE("a group of equal rewards is replaced by the next round's, the last round's is kept",
          "[steps]") {
  Steps steps(make_refilling(3));
  CHECK(steps.open(11) == Ids{20, 21});
  steps.add_group(21, 0.0, 1.0);
  CHECK(steps.granted().empty());
  steps.add_group(20, 0.5, 0.5);
  CHECK(steps.granted() == Ids{20 + kRoundStride});
  CHECK_FALSE(steps.take(11).has_value());
  CHECK(steps.is_duplicate(rewarded(20, 0, 1.0)));  // its round is over
  steps.add_group(20 + kRoundStride, 0.0, 0.0);
  CHECK(steps.granted() == Ids{20 + 2 * kRoundStride});
  steps.add_group(20 + 2 * kRoundStride, 1.0, 1.0);
  CHECK(steps.granted().empty());
  const auto step = steps.take(11);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 4);
  CHECK((*step)[0].group_id == 20 + 2 * kRoundStride);
  CHECK((*step)[1].group_id == 20 + 2 * kRoundStride);
  CHECK((*step)[2].group_id == 21);
  const auto& counters = steps.ledger().counters();
  CHECK(counters.delivered == 8);
  CHECK(counters.dropped_zero_variance == 4);
  CHECK(counters.refilled_groups == 2);
  CHECK(counters.kept_zero_variance == 1);
  CHECK(steps.waiting() == 0);
}

TEST_CASE("a sample that could not be scored makes no difference between the others", "[steps]") {
  Steps steps(make_refilling(3));
  (void)steps.open(11);
  const auto add_failed = [&](int64_t group, int32_t sample) {
    auto failed = make_rollout(group, sample, 10);
    failed.finish_reason = bridge::FinishReason::kError;
    CHECK(steps.takes(failed));
  };
  add_failed(20, 0);
  CHECK(steps.granted().empty());
  CHECK(steps.takes(rewarded(20, 1, 1.0)));
  CHECK(steps.granted() == Ids{20 + kRoundStride});
  add_failed(21, 1);
  CHECK(steps.takes(rewarded(21, 0, 1.0)));
  CHECK(steps.granted() == Ids{21 + kRoundStride});
  add_failed(20 + kRoundStride, 0);
  add_failed(20 + kRoundStride, 1);
  CHECK(steps.granted() == Ids{20 + 2 * kRoundStride});
  CHECK(steps.ledger().counters().failed == 4);
}

TEST_CASE("rounds replayed out of order are neither lost nor counted twice", "[steps]") {
  Steps steps(make_refilling(4));
  (void)steps.open(11);
  steps.add_group(20 + 2 * kRoundStride, 0.0, 1.0);
  steps.add_group(20 + kRoundStride, 1.0, 1.0);
  CHECK(steps.is_duplicate(rewarded(20 + kRoundStride, 0, 1.0)));
  steps.add_group(21, 0.0, 1.0);
  CHECK(steps.granted().empty());  // nobody knows yet whether round 0 teaches anything
  CHECK_FALSE(steps.take(11).has_value());
  steps.add_group(20, 0.0, 0.0);
  // Both rounds are passed at once; what is here already costs nothing to be granted.
  CHECK(steps.granted() == Ids{20 + kRoundStride, 20 + 2 * kRoundStride});
  const auto step = steps.take(11);
  REQUIRE(step.has_value());
  CHECK((*step)[0].group_id == 20 + 2 * kRoundStride);
  CHECK(steps.ledger().counters().delivered == 8);
  CHECK(steps.ledger().counters().dropped_zero_variance == 4);
}

TEST_CASE("a step that opens grants the rounds that its slots have come to", "[steps]") {
  Steps steps(make_refilling(3));
  steps.add_group(20, 0.5, 0.5);
  CHECK(steps.takes(rewarded(20 + kRoundStride, 0, 0.0)));
  CHECK(steps.granted().empty());  // the step is not open yet
  CHECK(steps.open(11) == Ids{20 + kRoundStride, 21});
  CHECK(steps.open(11).empty());
  CHECK(steps.open(12) == Ids{22, 23});
}

TEST_CASE("a later round that turns out not to be needed goes with its step", "[steps]") {
  Steps steps(make_refilling(3));
  steps.add_group(20 + kRoundStride, 0.0, 1.0);
  steps.add_group(20, 0.0, 1.0);
  steps.add_group(21, 0.0, 1.0);
  const auto step = steps.take(11);
  REQUIRE(step.has_value());
  CHECK((*step)[0].group_id == 20);
  CHECK(steps.waiting() == 0);
  CHECK(steps.ledger().counters().dropped_unneeded == 2);
  CHECK(steps.ledger().counters().refilled_groups == 0);
}

TEST_CASE("a round beyond those there are belongs to no step", "[steps]") {
  Steps steps(make_refilling(3, 1));
  CHECK(steps.refuses(rewarded(20 + kRoundStride, 0, 1.0, 8), Reason::kStale));
  CHECK(steps.refuses(rewarded(20 + 3 * kRoundStride, 0, 1.0), Reason::kUnknownGroup));
  CHECK(steps.open(11) == Ids{20, 21});
}

TEST_CASE("a checkpoint consumes every round of its steps", "[steps]") {
  Steps steps(make_refilling(2));
  steps.add_group(20, 0.0, 1.0);
  steps.add_group(21, 0.0, 1.0);
  REQUIRE(steps.take(11).has_value());
  CHECK(steps.ledger().checkpointed(11) == Ids{20, 20 + kRoundStride, 21, 21 + kRoundStride});
  CHECK(steps.ledger().checkpointed(11).empty());
  CHECK(steps.ledger().take_unrestorable(13).empty());  // the checkpoint holds them
}

// Version 10 is the checkpoint's. What was sampled under version 11 of this term and is trained on
// before the next checkpoint is of no use to a restart.
TEST_CASE("groups of weights that no checkpoint holds are given up once their step is done",
          "[steps]") {
  Steps steps(make_rules(1));
  steps.add_group(20, 0.0, 1.0);
  steps.add_group(21, 0.0, 1.0);
  REQUIRE(steps.take(11).has_value());
  for (const int32_t sample : {0, 1}) {
    CHECK(steps.takes(make_rollout(22, sample, 11)));
    CHECK(steps.takes(make_rollout(23, sample, 10)));
  }
  REQUIRE(steps.take(12).has_value());
  CHECK(steps.ledger().take_unrestorable(12).empty());  // step 12 is in training
  CHECK(steps.ledger().take_unrestorable(13) == Ids{22});
  CHECK(steps.ledger().take_unrestorable(13).empty());
}

TEST_CASE("rules that contradict themselves are refused by number", "[steps]") {
  rl::StepRules rules;
  rules.refill_rounds = 2;
  CHECK_THROWS_WITH(rl::step_policy(rules), Catch::Contains("without a total_reward"));
  rules.refill_rounds = 0;
  CHECK_THROWS_WITH(rl::step_policy(rules), Catch::Contains("0 rounds"));
  rules.refill_rounds = int64_t{1} << 40;
  CHECK_THROWS_WITH(rl::step_policy(rules), Catch::Contains("rounds of refill, expected 1 to"));
  CHECK_THROWS_WITH(rl::step_policy({2, 0}), Catch::Contains("groups of 0"));
  rules = make_rules(0);
  rules.straggler_timeout = std::chrono::seconds(1);
  CHECK_THROWS_WITH(rl::step_policy(rules),
                    Catch::Contains("groups of at least 2 of 2 samples, expected at least 2 and"));
}
