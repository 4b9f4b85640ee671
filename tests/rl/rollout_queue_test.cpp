// Guards: a step taken before its groups are whole or out of order, a rollout trained on beyond the
// staleness window, a group left half old and half new, rollouts of weights that a restart has
// wiped out, and rounds of refill that are lost, counted twice or asked for twice.
#include "rl/rollouts/rollout_queue.h"

#include <catch2/catch.hpp>

using namespace ringside;
using rl::Admission;
using rl::kRoundStride;
using Ids = std::vector<int64_t>;

namespace {

bridge::Rollout make_rollout(int64_t group, int32_t sample, int64_t version,
                             int64_t trainer_term = 3) {
  bridge::Rollout r;
  r.group_id = group;
  r.group_size = 2;
  r.sample_index = sample;
  r.completion_ids = {1};
  r.versions = {{version, 0, 1}};
  r.trainer_term = trainer_term;
  return r;
}

// Two groups of two a step, run epoch 3, started from version 10: step 11 is next.
rl::RolloutQueue make_queue(int64_t max_staleness) {
  return rl::RolloutQueue({2, 2, max_staleness, 3, 10}, 11);
}

// The same with `rounds` prompts a slot, judged by the first reward.
rl::RolloutQueue make_refilling(int64_t rounds, int64_t max_staleness = 0) {
  rl::QueueRules rules{2, 2, max_staleness, 3, 10};
  rules.refill_rounds = rounds;
  rules.total_reward = [](const bridge::Rollout& r) {
    return r.rewards.empty() ? std::nullopt : std::optional(r.rewards[0].second);
  };
  return rl::RolloutQueue(rules, 11);
}

bridge::Rollout rewarded(int64_t group, int32_t sample, double reward, int64_t version = 10) {
  auto r = make_rollout(group, sample, version);
  r.rewards = {{"reward", reward}};
  return r;
}

// Both samples of a group.
void add_group(rl::RolloutQueue& queue, int64_t group, double first, double second) {
  CHECK(queue.add(rewarded(group, 0, first)) == Admission::kAccepted);
  CHECK(queue.add(rewarded(group, 1, second)) == Admission::kAccepted);
}

}  // namespace

TEST_CASE("a step is taken whole and in order, however its rollouts arrive") {
  auto queue = make_queue(0);
  for (const auto& [group, sample] :
       std::vector<std::pair<int64_t, int32_t>>{{21, 1}, {20, 1}, {21, 0}}) {
    CHECK(queue.add(make_rollout(group, sample, 10)) == Admission::kAccepted);
    CHECK_FALSE(queue.take(11).has_value());
  }
  CHECK(queue.add(make_rollout(21, 0, 10)) == Admission::kDuplicate);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kAccepted);
  const auto step = queue.take(11);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK((*step)[i].group_id == 20 + static_cast<int64_t>(i / 2));
    CHECK((*step)[i].sample_index == static_cast<int32_t>(i % 2));
  }
  CHECK(queue.size() == 0);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kFinished);
  CHECK_THROWS_WITH(queue.take(11), Catch::Contains("step 12 is next"));
}

TEST_CASE("the staleness window is closed on both sides") {
  auto strict = make_queue(0);
  CHECK(strict.add(make_rollout(20, 0, 9)) == Admission::kStale);
  CHECK(strict.add(make_rollout(22, 0, 11)) == Admission::kTooEarly);
  auto loose = make_queue(2);
  CHECK(loose.add(make_rollout(20, 0, 8)) == Admission::kAccepted);
  CHECK(loose.add(make_rollout(20, 1, 7)) == Admission::kStale);
  CHECK(loose.add(make_rollout(24, 0, 10)) == Admission::kAccepted);
  CHECK(loose.add(make_rollout(26, 0, 11)) == Admission::kTooEarly);
  CHECK(loose.counters().dropped_out_of_window == 1);
  loose.published(12);
  CHECK(loose.add(make_rollout(20, 1, 11)) == Admission::kStale);  // from the future of step 11
}

TEST_CASE("a stale sample takes its whole group with it, once, and no other group") {
  auto queue = make_queue(1);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kAccepted);
  CHECK(queue.add(make_rollout(21, 0, 10)) == Admission::kAccepted);
  CHECK(queue.add(make_rollout(20, 1, 8)) == Admission::kStale);
  CHECK(queue.size() == 1);
  const auto requests = queue.take_requests();
  CHECK(requests.forget == Ids{20});
  CHECK(requests.grant == Ids{20});
  CHECK(queue.take_requests().grant.empty());
  CHECK(queue.add(make_rollout(20, 1, 10)) == Admission::kAccepted);
  CHECK(queue.add(make_rollout(21, 1, 10)) == Admission::kAccepted);
  CHECK_FALSE(queue.take(11).has_value());  // sample 0 went with sample 1
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kAccepted);
  REQUIRE(queue.take(11).has_value());
  CHECK(queue.counters().accepted == 5);
  CHECK(queue.counters().dropped_siblings == 1);
  CHECK(queue.counters().dropped_stale == 1);
  CHECK(queue.counters().regranted_groups == 1);
}

TEST_CASE("one old span makes the whole rollout stale") {
  auto queue = make_queue(1);
  auto rollout = make_rollout(20, 0, 9);
  rollout.versions = {{8, 0, 1}, {10, 1, 2}};
  CHECK(queue.add(rollout) == Admission::kStale);
}

TEST_CASE("a rollout of an earlier epoch counts only if its weights still exist") {
  rl::RolloutQueue queue({2, 2, 2, 3, 10, {{2, 10}}}, 11);
  CHECK(queue.add(make_rollout(20, 0, 10, 2)) ==
        Admission::kAccepted);  // the checkpoint's own version
  CHECK(queue.add(make_rollout(22, 0, 11, 2)) ==
        Admission::kStale);  // version 11 was lost with the crash
  CHECK(queue.add(make_rollout(22, 0, 11, 3)) ==
        Admission::kStale);  // this start has not come to it
  queue.published(11);
  CHECK(queue.add(make_rollout(22, 0, 11, 3)) == Admission::kAccepted);  // version 11 of this start
  CHECK(queue.add(make_rollout(22, 1, 11, 2)) == Admission::kStale);     // is not that of the last
}

TEST_CASE("versions that an earlier restart wiped out stay wiped out") {
  rl::QueueRules rules{2, 2, 2, 3, 10};
  rules.newest_of_term = {{1, 8}, {2, 10}};
  rl::RolloutQueue queue(rules, 11);
  CHECK(queue.add(make_rollout(20, 0, 9, 2)) == Admission::kAccepted);
  CHECK(queue.add(make_rollout(21, 0, 9, 1)) ==
        Admission::kStale);  // 9 of epoch 1 and 9 of epoch 2 are two things
  CHECK(queue.add(make_rollout(21, 0, 8, 1)) == Admission::kAccepted);
}

TEST_CASE("a rollout of an epoch without a record is dropped, whatever its version") {
  rl::RolloutQueue queue({2, 2, 2, 3, 10, {{1, 9}}}, 11);  // start 2 left no record
  CHECK(queue.add(make_rollout(20, 0, 10, 3)) == Admission::kAccepted);
  CHECK(queue.add(make_rollout(21, 0, 9, 2)) == Admission::kStale);   // between two that are known
  CHECK(queue.add(make_rollout(20, 1, 10, 4)) == Admission::kStale);  // of a start yet to come
  CHECK(queue.size() == 0);
  const auto requests = queue.take_requests();
  CHECK(requests.forget == Ids{21, 20});
  CHECK(requests.grant == Ids{21, 20});
  CHECK(queue.counters().dropped_stale == 2);
  CHECK(queue.counters().dropped_siblings == 1);
  CHECK(queue.counters().regranted_groups == 2);
}

TEST_CASE(
    "a rollout of a group of another size is dropped with its group, which is asked for again") {
  auto queue = make_queue(0);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kAccepted);
  for (const int32_t size : {1, 3}) {
    auto other = make_rollout(size == 1 ? 20 : 21, 0, 10);
    other.group_size = size;
    CHECK(queue.add(other) == Admission::kWrongSize);
  }
  CHECK(queue.size() == 0);
  const auto requests = queue.take_requests();
  CHECK(requests.forget == Ids{20, 21});
  CHECK(requests.grant == Ids{20, 21});
  CHECK(queue.counters().accepted == 1);
  CHECK(queue.counters().dropped_stale == 2);
  CHECK(queue.counters().dropped_siblings == 1);
  for (const int64_t group : {20, 21}) {
    for (const int32_t sample : {0, 1})
      CHECK(queue.add(make_rollout(group, sample, 10)) == Admission::kAccepted);
  }
  CHECK(queue.take(11).has_value());
}

TEST_CASE("a group of equal rewards is replaced by the next round's, the last round's is kept") {
  auto queue = make_refilling(3);
  add_group(queue, 21, 0.0, 1.0);
  CHECK(queue.take_requests().grant.empty());
  add_group(queue, 20, 0.5, 0.5);
  auto requests = queue.take_requests();
  CHECK(requests.grant == Ids{20 + kRoundStride});
  CHECK(requests.forget.empty());  // the journal keeps it until the checkpoint
  CHECK_FALSE(queue.take(11).has_value());
  CHECK(queue.step_of(20 + kRoundStride) == 11);
  CHECK(queue.min_version(20 + kRoundStride) == 10);
  CHECK(queue.add(rewarded(20, 0, 1.0)) == Admission::kUnasked);  // its round is over
  add_group(queue, 20 + kRoundStride, 0.0, 0.0);
  CHECK(queue.take_requests().grant == Ids{20 + 2 * kRoundStride});
  add_group(queue, 20 + 2 * kRoundStride, 1.0, 1.0);
  CHECK(queue.take_requests().grant.empty());
  const auto step = queue.take(11);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 4);
  CHECK((*step)[0].group_id == 20 + 2 * kRoundStride);
  CHECK((*step)[1].group_id == 20 + 2 * kRoundStride);
  CHECK((*step)[2].group_id == 21);
  const auto counters = queue.counters();
  CHECK(counters.accepted == 8);
  CHECK(counters.dropped_zero_variance == 4);
  CHECK(counters.refilled_groups == 2);
  CHECK(counters.kept_zero_variance == 1);
  CHECK(queue.size() == 0);
}

TEST_CASE("a sample that could not be scored makes no difference between the others") {
  auto queue = make_refilling(3);
  const auto add_failed = [&](int64_t group, int32_t sample) {
    auto failed = make_rollout(group, sample, 10);
    failed.finish_reason = bridge::FinishReason::kError;
    CHECK(queue.add(failed) == Admission::kAccepted);
  };
  add_failed(20, 0);
  CHECK(queue.take_requests().grant.empty());
  CHECK(queue.add(rewarded(20, 1, 1.0)) == Admission::kAccepted);
  CHECK(queue.take_requests().grant == Ids{20 + kRoundStride});
  add_failed(21, 1);
  CHECK(queue.add(rewarded(21, 0, 1.0)) == Admission::kAccepted);
  CHECK(queue.take_requests().grant == Ids{21 + kRoundStride});
  add_failed(20 + kRoundStride, 0);
  add_failed(20 + kRoundStride, 1);
  CHECK(queue.take_requests().grant == Ids{20 + 2 * kRoundStride});
  CHECK(queue.counters().failed_samples == 4);
}

TEST_CASE("rounds replayed out of order are neither lost nor counted twice") {
  auto queue = make_refilling(4);
  add_group(queue, 20 + 2 * kRoundStride, 0.0, 1.0);
  add_group(queue, 20 + kRoundStride, 1.0, 1.0);
  CHECK(queue.add(rewarded(20 + kRoundStride, 0, 1.0)) == Admission::kDuplicate);
  add_group(queue, 21, 0.0, 1.0);
  CHECK(queue.take_requests().grant.empty());  // nobody knows yet whether round 0 teaches anything
  CHECK_FALSE(queue.take(11).has_value());
  add_group(queue, 20, 0.0, 0.0);
  // Both rounds are passed at once; what is here already costs the bridge nothing to be granted.
  CHECK(queue.take_requests().grant == Ids{20 + kRoundStride, 20 + 2 * kRoundStride});
  const auto step = queue.take(11);
  REQUIRE(step.has_value());
  CHECK((*step)[0].group_id == 20 + 2 * kRoundStride);
  CHECK(queue.counters().accepted == 8);
  CHECK(queue.counters().dropped_zero_variance == 4);
  CHECK(queue.counters().duplicates == 1);
}

TEST_CASE("a later round that turns out not to be needed goes with its step") {
  auto queue = make_refilling(3);
  add_group(queue, 20 + kRoundStride, 0.0, 1.0);
  add_group(queue, 20, 0.0, 1.0);
  add_group(queue, 21, 0.0, 1.0);
  const auto step = queue.take(11);
  REQUIRE(step.has_value());
  CHECK((*step)[0].group_id == 20);
  CHECK(queue.size() == 0);
  CHECK(queue.counters().dropped_unneeded == 2);
  CHECK(queue.counters().refilled_groups == 0);
}

TEST_CASE("a stale rollout of a round that is not reached is forgotten, not asked for") {
  auto queue = make_refilling(3, 1);
  CHECK(queue.add(rewarded(20 + kRoundStride, 0, 1.0, 8)) == Admission::kStale);
  auto requests = queue.take_requests();
  CHECK(requests.forget == Ids{20 + kRoundStride});
  CHECK(requests.grant.empty());
  CHECK(queue.add(rewarded(20 + 3 * kRoundStride, 0, 1.0)) ==
        Admission::kUnasked);  // beyond the rounds there are
  CHECK(queue.take_requests().forget == Ids{20 + 3 * kRoundStride});
}

TEST_CASE("rules that contradict themselves are refused by number") {
  rl::QueueRules rules;
  rules.refill_rounds = 2;
  CHECK_THROWS_WITH(rl::RolloutQueue(rules, 1), Catch::Contains("without a total_reward"));
  rules.refill_rounds = 0;
  CHECK_THROWS_WITH(rl::RolloutQueue(rules, 1), Catch::Contains("0 rounds"));
  rules.refill_rounds = int64_t{1} << 40;
  CHECK_THROWS_WITH(rl::RolloutQueue(rules, 1), Catch::Contains("rounds of refill, expected 1 to"));
  CHECK_THROWS_WITH(rl::RolloutQueue({2, 0}, 1), Catch::Contains("groups of 0"));
}
