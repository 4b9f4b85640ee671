// Guards the live side over real sockets: workers that stand still while the trainer trains,
// rollouts outside the staleness window, groups that are half old, and rounds of refill that a
// restart loses or has sampled twice.
#include "rl/rollouts/rollout_intake.h"

#include <catch2/catch.hpp>

#include "tests/rl/intake_driver.h"
#include "tests/rollout_bridge/direct_trainer.h"

using namespace ringside;
using namespace ringside::test;
using rl::kRoundStride;

TEST_CASE(
    "with staleness 2 a worker samples two steps ahead of the one that is trained, and no further",
    "[intake]") {
  const TempDir dir;
  rl::RolloutIntake intake(options_of(dir, 1), make_rules(2, 2), /*last_step=*/6);
  FakeWorker worker(intake, 100);
  publish(intake, 1, 0);
  CHECK(worker.take_grants(12) ==
        samples_of(0, 6));  // steps 1 to 3, all under version 0, and the trainer polls nothing
  CHECK(worker.take_grants(1, std::chrono::milliseconds(300)).empty());
  for (int64_t group = 0; group < 6; ++group) {
    worker.send_group(group, 0, 0.0, 1.0);
  }
  REQUIRE(worker.drain());  // journalled while the trainer is away
  const auto first = take_step(intake, 1, kPatience);
  REQUIRE(first.has_value());
  CHECK(samples_in(*first) == samples_of(0, 2));
  publish(intake, 1, 1);
  CHECK(worker.take_grants(4) == samples_of(6, 8));  // step 4, while step 2 is trained
  CHECK(worker.version() == 1);
  REQUIRE(take_step(intake, 2, kPatience).has_value());
  publish(intake, 1, 2);
  REQUIRE(take_step(intake, 3, kPatience).has_value());  // age 2
  CHECK(intake.counters().accepted == 12);
  CHECK(intake.counters().dropped_stale == 0);
}

TEST_CASE(
    "with staleness 2 rollouts of age 0, 1 and 2 are taken; one of age 3 is sampled again, alone",
    "[intake]") {
  const TempDir dir;
  auto rules = make_rules(4, 2);
  rl::RolloutIntake intake(options_of(dir, 1), rules, /*last_step=*/4);
  FakeWorker worker(intake, 100);
  for (int64_t version = 0; version < 3; ++version) {  // steps 1 to 3 go by
    publish(intake, 1, version);
    const std::size_t granted = version == 0 ? 24 : version == 1 ? 8 : 0;
    for (const Sample& s : worker.take_grants(granted)) {
      if (s.first < 12) {
        worker.send(s, version, s.second);
      }
    }
    REQUIRE(take_step(intake, version + 1, kPatience).has_value());
  }
  publish(intake, 1, 3);  // step 4: groups 12 to 15, trained from version 3
  worker.send_group(12, 3, 0, 1);
  worker.send_group(13, 2, 0, 1);
  worker.send_group(14, 1, 0, 1);
  worker.send({15, 0}, 3, 0);
  worker.send({15, 1}, 0, 1);
  REQUIRE(worker.drain());
  CHECK_FALSE(
      take_step(intake, 4, std::chrono::milliseconds(500)).has_value());  // three groups of four
  CHECK(worker.take_grants(1) == std::set<Sample>{{15, 1}});              // its sibling stands
  CHECK(worker.take_grants(1, std::chrono::milliseconds(200)).empty());
  const rl::SourceCounters counters = intake.counters();
  CHECK(counters.dropped_stale == 0);
  CHECK(refused_as_stale(intake) == 1);
  worker.send({15, 1}, 3, 1);
  const auto step = take_step(intake, 4, kPatience);
  REQUIRE(step.has_value());
  CHECK(step->size() == 8);
  CHECK(samples_in(*step) == samples_of(12, 16));
  for (const auto& r : *step) {
    CHECK(r.versions.front().version >= 1);
  }
}

TEST_CASE("a sample that failed is made again alone", "[intake]") {
  const TempDir dir;
  rl::RolloutIntake intake(options_of(dir, 1), make_rules(1, 0), 1);
  FakeWorker worker(intake, 100);
  publish(intake, 1, 0);
  REQUIRE(worker.take_grants(2) == samples_of(0, 1));
  worker.send({0, 0}, 0, 1.0);
  worker.send({0, 1}, 0, 0.0, bridge::FinishReason::kError);
  CHECK(worker.take_grants(1) == std::set<Sample>{{0, 1}});
  worker.send({0, 1}, 0, 0.5);
  const auto step = take_step(intake, 1, kPatience);
  REQUIRE(step.has_value());
  CHECK((*step)[1].finish_reason == bridge::FinishReason::kStop);
  CHECK(intake.counters().retried_samples == 1);
  CHECK(intake.counters().failed_samples == 0);
}

TEST_CASE("who waits for a step gets it without a sample that never comes", "[intake]") {
  const TempDir dir;
  auto rules = make_rules(1, 0);
  rules.group_size = 3;
  rules.total_reward = {};  // a stand-in has none
  rules.straggler_timeout = std::chrono::milliseconds(300);
  rl::RolloutIntake intake(options_of(dir, 1), rules, 1);
  FakeWorker worker(intake, 100);
  publish(intake, 1, 0);
  REQUIRE(worker.take_grants(3).size() == 3);
  for (const int32_t sample : {0, 2}) {
    worker.send({0, sample}, 0, 1.0, bridge::FinishReason::kStop, 3);
  }
  REQUIRE(worker.drain());
  const auto step = take_step(intake, 1, kPatience);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 3);
  CHECK(bridge::has_failed((*step)[1]));
  const rl::SourceCounters counters = intake.counters();
  CHECK(counters.stragglers == 1);
  CHECK(counters.failed_samples == 1);
  CHECK(counters.accepted == 3);
  worker.send({0, 1}, 0, 1.0, bridge::FinishReason::kStop, 3);
  REQUIRE(worker.drain());
  CHECK(intake.counters().duplicates == 1);
}

// Life 1: group 0 teaches nothing, and half of its replacement is made.
void leave_half_a_refill(const TempDir& dir, const rl::StepRules& rules) {
  rl::RolloutIntake intake(options_of(dir, 1), rules, 4);
  FakeWorker worker(intake, 2);  // one group at a time
  publish(intake, 1, 0);
  REQUIRE(worker.take_grants(2) == samples_of(0, 1));
  worker.send_group(0, 0, 1.0, 1.0);
  REQUIRE(worker.take_grants(2) == samples_of(kRoundStride, kRoundStride + 1));
  CHECK(intake.counters().refilled_groups == 1);
  worker.send({kRoundStride, 0}, 0, 1.0);
  REQUIRE(worker.drain());
}

TEST_CASE("a restart takes the rounds of refill up where they were", "[intake]") {
  const TempDir dir;
  auto rules = make_rules(1, 1);
  rules.refill_rounds = 3;
  leave_half_a_refill(dir, rules);
  rl::RolloutIntake intake(options_of(dir, 2, {{1, 0}}), rules, 4);
  FakeWorker worker(intake, 100);
  // The trainer may look for rollouts before another thread has published the first weights.
  const bool looks_first = GENERATE(true, false);
  if (looks_first) {
    CHECK_FALSE(take_step(intake, 1, std::chrono::milliseconds(100)).has_value());
  }
  publish(intake, 2, 0);
  // Group 0 and half of its replacement came out of the journal: only the other half is asked for.
  CHECK(worker.take_grants(3) == std::set<Sample>{{kRoundStride, 1}, {1, 0}, {1, 1}});
  CHECK(worker.take_grants(1, std::chrono::milliseconds(300)).empty());
  worker.send({kRoundStride, 1}, 0, 0.0);
  worker.send_group(1, 0, 0.0, 1.0);
  const auto step = take_step(intake, 1, kPatience);
  REQUIRE(step.has_value());
  CHECK(samples_in(*step) == samples_of(kRoundStride, kRoundStride + 1));
  REQUIRE(worker.drain());
  CHECK(intake.counters().accepted == 6);
  CHECK(intake.counters().dropped_zero_variance == 2);
  CHECK(intake.counters().refilled_groups == 1);
  // The checkpoint closes every round of the slot.
  publish(intake, 2, 1);
  intake.endpoint().checkpointed(1);
  const auto before = intake.counters();
  worker.send({2 * kRoundStride, 0}, 0, 0.0);
  REQUIRE(worker.drain());
  CHECK(intake.counters().duplicates == before.duplicates + 1);
  REQUIRE(take_step(intake, 2, kPatience).has_value());
}

TEST_CASE("refill that gives up says so", "[intake]") {
  const TempDir dir;
  auto rules = make_rules(1, 0);
  rules.refill_rounds = 2;
  rl::RolloutIntake intake(options_of(dir, 1), rules, 2);
  FakeWorker worker(intake, 2);
  publish(intake, 1, 0);
  REQUIRE(worker.take_grants(2) == samples_of(0, 1));
  worker.send_group(0, 0, 1.0, 1.0);
  REQUIRE(worker.take_grants(2) == samples_of(kRoundStride, kRoundStride + 1));
  CHECK_FALSE(take_step(intake, 1, std::chrono::milliseconds(300)).has_value());
  (void)intake.drain_messages();
  worker.send_group(kRoundStride, 0, 0.0, 0.0);
  REQUIRE(take_step(intake, 1, kPatience).has_value());
  const auto messages = intake.drain_messages();
  REQUIRE_FALSE(messages.empty());
  CHECK_THAT(messages[0].text, Catch::Contains("refill gave up on 1 of 1 prompts of step 1") &&
                                   Catch::Contains("algorithm.dynamic_sampling_rounds"));
}

// A prompt that is replaced while work of later steps waits: with room for one group the refill
// must go first.
TEST_CASE("a late grant of an early step overtakes", "[intake]") {
  const TempDir dir;
  auto rules = make_rules(1, 2);
  rules.refill_rounds = 2;
  rl::RolloutIntake intake(options_of(dir, 1), rules, 3);
  FakeWorker worker(intake, 2);
  publish(intake, 1, 0);
  REQUIRE(worker.take_grants(2) == samples_of(0, 1));
  worker.send_group(0, 0, 1.0, 1.0);
  CHECK(worker.take_grants(2) ==
        samples_of(kRoundStride, kRoundStride + 1));  // not group 1, granted before it
}

TEST_CASE("rollouts of a group that is replaced free the bytes that they took", "[intake]") {
  const TempDir dir;
  auto rules = make_rules(1, 0);
  rules.refill_rounds = 2;
  DirectTrainer trainer(with_policy(options_of(dir, 1), rules));
  trainer.publish(0);
  trainer.bring_in("a", 0, 4);
  trainer.state().open_steps(1, 1);
  for (const int32_t sample : {0, 1}) {
    bridge::Rollout r = rollout_under(0, 0, sample, 2);
    r.rewards = {{"reward", 1.0}};
    CHECK(trainer.deliver("a", r).status == "ACCEPTED");
    CHECK((trainer.state().counters().queued_bytes > 0) == (sample == 0));
  }
  CHECK(trainer.state().counters().groups.dropped_zero_variance == 2);
  CHECK(trainer.in_flight("a") == 2);  // of the next round
}

TEST_CASE("a journal without room is told again every 30 s while rollouts are refused") {
  rl::JournalRoomNotice notice(std::chrono::seconds(30));
  const rl::JournalRoomNotice::TimePoint begin{};
  std::vector<int64_t> told;
  for (int64_t second = 0; second < 200; ++second) {
    // Room for 20 s from second 100 on.
    const int64_t refused = second < 10 ? 0 : second < 100 ? second : second < 120 ? 99 : second;
    if (notice.is_due(refused, begin + std::chrono::seconds(second))) {
      told.push_back(second);
    }
  }
  CHECK(told == std::vector<int64_t>{40, 70, 100, 150, 180});
}

TEST_CASE("the line about a journal without room names its place and what to do", "[intake]") {
  const TempDir dir;
  auto options = options_of(dir, 1);
  options.journal.max_bytes = 1;
  rl::RolloutIntake intake(options, make_rules(1, 0), 10);
  publish(intake, 1, 0);
  FakeWorker worker(intake, 8);
  const auto granted = worker.take_grants(2);
  REQUIRE(granted.size() == 2);
  worker.send(*granted.begin(), 0, 1.0);
  const auto begin = std::chrono::steady_clock::now();
  const auto wait_for_refusals = [&](uint64_t count) {
    while (intake.counters().bridge->journal_refused < count) {
      REQUIRE(std::chrono::steady_clock::now() < begin + kPatience);
      worker.take_grants(1, std::chrono::milliseconds(20));
    }
  };
  wait_for_refusals(1);
  (void)intake.drain_messages(begin);
  wait_for_refusals(2);  // a second later
  bool told = false;
  for (const rl::IntakeMessage& message : intake.drain_messages(begin + std::chrono::seconds(31))) {
    told =
        told || (message.is_trouble &&
                 message.text.find("rollouts still wait for room in " + dir.path().string()) == 0 &&
                 message.text.find("free space") != std::string::npos);
  }
  CHECK(told);
}

TEST_CASE("more prompts than group ids can tell are refused", "[intake]") {
  const TempDir dir;
  CHECK_THROWS_WITH(rl::RolloutIntake(options_of(dir, 1), make_rules(1 << 20, 0), int64_t{1} << 21),
                    Catch::Contains("limit"));
}
