// Guards the restart rule, case by case: a trainer killed at any moment and started again from a
// lower version takes what was sampled under weights that survived, samples the rest anew, and
// counts each rollout once.
//
// Life 1 (trainer_term 1) starts from version 0; life 2 (trainer_term 2) from the last checkpoint.
// Steps of two groups of two.
#include <algorithm>
#include <catch2/catch.hpp>

#include "rollout_bridge/trainer/journal.h"
#include "tests/rl/intake_driver.h"
#include "tests/rollout_bridge/direct_trainer.h"

using namespace ringside;
using namespace ringside::test;
using std::chrono::milliseconds;

namespace {

struct Case {
  const char* what;
  int64_t max_staleness;
  int64_t restored;  // version that life 2 begins with; step restored + 1 is next
  int64_t step;      // that the rollout is for
  int64_t trainer_term;
  std::vector<int64_t> versions;  // one a token
  const char* expected;           // status of the ACK
};

constexpr const char* kTaken = "ACCEPTED";
constexpr const char* kStale = "STALE";
constexpr const char* kOver = "DUPLICATE";

// Life 2 of a run whose life 1 began with version 0; it has published up to `restored` + 1.
const Case kCases[] = {
    // Synchronous: step t wants version t-1.
    {"before any checkpoint, of the weights the run began with", 0, 0, 1, 1, {0}, kTaken},
    {"before any checkpoint, of a step that was under way", 0, 0, 2, 1, {1}, kStale},
    {"the checkpoint's own version, published before the crash", 0, 3, 4, 1, {3}, kTaken},
    {"consumed by the checkpoint", 0, 3, 3, 1, {2}, kOver},
    {"older than the step wants", 0, 3, 4, 1, {2}, kStale},
    {"newer than the checkpoint, lost with the crash", 0, 3, 4, 1, {4}, kStale},
    {"of this life, at its first version", 0, 3, 4, 2, {3}, kTaken},
    // One step off: the step after the next is sampled while the next is trained.
    {"one version old", 1, 3, 4, 1, {2}, kTaken},
    {"two versions old", 1, 3, 4, 1, {1}, kStale},
    {"of the checkpoint for the step after the next", 1, 3, 5, 1, {3}, kTaken},
    {"version 4 of life 1, which this life has made anew", 1, 3, 5, 1, {4}, kStale},
    {"version 4 of this life", 1, 3, 5, 2, {4}, kTaken},
    {"version 5, which this life has not come to", 1, 3, 5, 2, {5}, "REJECTED"},
    {"of a step beyond the window", 1, 3, 6, 1, {3}, kStale},
    // Four versions behind at most.
    {"four versions old", 4, 5, 6, 1, {1}, kTaken},
    {"five versions old", 4, 5, 6, 1, {0}, kStale},
    {"spans over versions that all survived", 4, 5, 6, 1, {2, 3, 5}, kTaken},
    {"one span of lost weights", 4, 5, 8, 1, {5, 6}, kStale},
    {"one span too old", 4, 5, 6, 1, {0, 5}, kStale},
    // Sampled over the restart: trainer_term is its first token's, versions of both lives may stand
    // side by side.
    {"begun before, gone on at the checkpoint", 4, 5, 6, 1, {4, 5}, kTaken},
    {"begun before, gone on under this life's version 6: refused rather than guessed",
     4,
     5,
     8,
     1,
     {5, 6},
     kStale},
    {"begun under lost weights, gone on at the checkpoint", 4, 5, 8, 1, {6, 5}, kStale},
};

bridge::Rollout rollout_of(const Case& c) {
  bridge::Rollout r = make_rollout(2 * (c.step - 1), 0, 2);
  lengthen(r, c.versions.size());
  r.trainer_term = c.trainer_term;
  r.versions.clear();
  for (std::size_t i = 0; i < c.versions.size(); ++i) {
    const auto begin = static_cast<int64_t>(i);
    r.versions.push_back({c.versions[i], begin, begin + 1});
  }
  return r;
}

// Rollouts in the journal that no checkpoint has consumed.
std::size_t journalled(const TempDir& dir) {
  bridge::Journal::Options options;
  options.directory = dir.path() / "journal";
  options.run_id = "run";
  return bridge::Journal(options).take_replayed().size();
}

}  // namespace

TEST_CASE("each rollout of a former life is judged by what became of its weights", "[restart]") {
  for (const Case& c : kCases) {
    INFO(c.what);
    const TempDir dir;
    {
      DirectTrainer life(with_policy(options_of(dir, 1), make_rules(2, c.max_staleness)));
      life.state().open_steps(1, c.step);
    }
    DirectTrainer life(with_policy(options_of(dir, 2, {{1, c.restored}}),
                                   make_rules(2, c.max_staleness, c.restored)));
    life.publish(c.restored);
    life.bring_in("w", c.restored, 100);
    life.state().open_steps(c.restored + 1, c.restored + 1 + c.max_staleness);
    life.publish(c.restored + 1);
    CHECK(life.deliver("w", rollout_of(c)).status == c.expected);
    CHECK(life.state().counters().accepted == (c.expected == kTaken ? 1 : 0));
    CHECK(life.rejected(bridge::Reason::kStale) == (c.expected == kStale ? 1 : 0));
  }
}

TEST_CASE(
    "killed before the first checkpoint: what was trained on is trained on again, not sampled",
    "[restart]") {
  const TempDir dir;
  std::vector<bridge::Rollout> trained;
  {
    rl::RolloutIntake intake(options_of(dir, 1), make_rules(2, 0), 4);
    FakeWorker worker(intake, 100);
    publish(intake, 1, 0);
    REQUIRE(worker.take_grants(4) == samples_of(0, 2));
    worker.send_group(0, 0, 0, 1);
    worker.send_group(1, 0, 0, 1);
    trained = take_step(intake, 1, kPatience).value();
    // Killed while step 1 is trained: nothing published, nothing saved.
  }
  rl::RolloutIntake intake(options_of(dir, 2, {{1, 0}}), make_rules(2, 0, 0), 4);
  FakeWorker worker(intake, 100);
  publish(intake, 2, 0);
  const auto again = take_step(intake, 1, kPatience);
  REQUIRE(again.has_value());
  CHECK(*again == trained);
  CHECK(worker.take_grants(1, milliseconds(200)).empty());
  CHECK(intake.counters().accepted == 4);
}

TEST_CASE(
    "killed after a step that no checkpoint holds: its rollouts left the journal, its groups are "
    "sampled anew",
    "[restart]") {
  const TempDir dir;
  {
    rl::RolloutIntake intake(options_of(dir, 1), make_rules(2, 0), 5);
    FakeWorker worker(intake, 100);
    for (int64_t version = 0; version < 3; ++version) {  // steps 1 to 3, a checkpoint after step 1
      publish(intake, 1, version);
      if (version == 1) {
        intake.endpoint().checkpointed(1);
      }
      for (const Sample& s : worker.take_grants(4)) {
        worker.send(s, version, s.second);
      }
      REQUIRE(take_step(intake, version + 1, kPatience).has_value());
    }
    publish(intake, 1, 3);
    REQUIRE(worker.take_grants(4) == samples_of(6, 8));
    worker.send({6, 0}, 3, 0);
    REQUIRE(worker.drain());
  }
  // Of step 2, whose weights (version 1) the checkpoint holds, all is there; step 3 and what waits
  // for step 4 are of lost weights: the one was dropped when it was trained on, the other is not
  // taken up now.
  CHECK(journalled(dir) == 5);
  rl::RolloutIntake intake(options_of(dir, 2, {{1, 1}}), make_rules(2, 0, 1), 5);
  FakeWorker worker(intake, 100);
  publish(intake, 2, 1);
  const auto again = take_step(intake, 2, kPatience);
  REQUIRE(again.has_value());
  CHECK(samples_in(*again) == samples_of(2, 4));
  CHECK(intake.counters().accepted == 4);
  publish(intake, 2, 2);
  CHECK(worker.take_grants(4) == samples_of(4, 6));
  for (const Sample& s : samples_of(4, 6)) {
    worker.send(s, 2, s.second);
  }
  const auto third = take_step(intake, 3, kPatience);
  REQUIRE(third.has_value());
  for (const auto& r : *third) {
    CHECK(r.trainer_term == 2);
  }
  const auto messages = intake.drain_messages();
  CHECK(std::count_if(messages.begin(), messages.end(), [](const rl::IntakeMessage& message) {
          return message.text.find("1 rollouts of the journal not taken") != std::string::npos;
        }) == 1);
  publish(intake, 2, 3);
  CHECK(worker.take_grants(4) == samples_of(6, 8));  // sample 0 of group 6 as well
}

TEST_CASE("what a worker holds unacknowledged is judged like what the journal holds", "[restart]") {
  const TempDir dir;
  auto options = options_of(dir, 1);
  options.rollout_address = "ipc://" + (dir.path() / "rollouts").string();
  FakeWorker worker(options.rollout_address, 100);
  {
    rl::RolloutIntake intake(options, make_rules(2, 1), 5);
    publish(intake, 1, 0);
    REQUIRE(worker.take_grants(8) == samples_of(0, 4));  // steps 1 and 2
    for (const Sample& s : samples_of(0, 2)) {
      worker.send(s, 0, s.second);
    }
    REQUIRE(take_step(intake, 1, kPatience).has_value());
    publish(intake, 1, 1);
    REQUIRE(worker.take_grants(4) == samples_of(4, 6));  // step 3, under version 1
  }
  // The trainer is dead, nothing saved. Made meanwhile: step 2 under version 0, which survives, and
  // under version 1, which does not; step 3.
  worker.send_group(2, 0, 0, 1);
  worker.send({3, 0}, 0, 0);
  worker.send({3, 1}, 1, 1);
  worker.send_group(4, 1, 0, 1);
  CHECK(worker.pending() == 6);
  options.trainer_term = 2;
  options.newest_of_term = {{1, 0}};
  rl::RolloutIntake intake(options, make_rules(2, 1), 5);
  publish(intake, 2, 0);
  REQUIRE(worker.drain());
  REQUIRE(take_step(intake, 1, kPatience).has_value());  // out of the journal
  publish(intake, 2, 1);
  CHECK_FALSE(take_step(intake, 2, milliseconds(300)).has_value());
  // Sample 0 of group 3 survived. Group 5 is granted as well: the new start does not know that the
  // worker has it in hand; the worker's queue knows.
  CHECK(worker.take_grants(5) == std::set<Sample>{{3, 1}, {4, 0}, {4, 1}, {5, 0}, {5, 1}});
  CHECK(worker.take_grants(1, milliseconds(200)).empty());
  CHECK(intake.counters().accepted == 4 + 3);
  CHECK(refused_as_stale(intake) == 3);
  for (const Sample& s : samples_of(3, 6)) {
    worker.send(s, 1, s.second);
  }
  REQUIRE(take_step(intake, 2, kPatience).has_value());
  publish(intake, 2, 2);
  REQUIRE(take_step(intake, 3, kPatience).has_value());
}

TEST_CASE("a version number of both lives means two things", "[restart]") {
  const TempDir dir;
  rl::RolloutIntake intake(options_of(dir, 2, {{1, 0}}), make_rules(2, 1, 0), 5);
  FakeWorker worker(intake, 100);
  publish(intake, 2, 0);
  REQUIRE(worker.take_grants(8) == samples_of(0, 4));
  for (const Sample& s : samples_of(0, 2)) {
    worker.send(s, 0, s.second);
  }
  REQUIRE(take_step(intake, 1, kPatience).has_value());
  publish(intake, 2, 1);
  REQUIRE(worker.take_grants(4) == samples_of(4, 6));
  for (const int64_t epoch : {1, 2}) {
    bridge::Rollout r = make_rollout(2, static_cast<int32_t>(epoch - 1), 2, 7);
    r.versions = {{1, 0, static_cast<int64_t>(r.completion_ids.size())}};
    r.trainer_term = epoch;
    worker.send(r);
  }
  REQUIRE(worker.drain());
  CHECK_FALSE(take_step(intake, 2, milliseconds(200)).has_value());
  CHECK(refused_as_stale(intake) == 1);  // version 1 of life 1
  CHECK(intake.counters().accepted == 5);
}

TEST_CASE("after a restart with another group size no group is made of both", "[restart]") {
  const TempDir dir;
  {
    rl::RolloutIntake intake(options_of(dir, 1), make_rules(2, 0), 4);
    FakeWorker worker(intake, 100);
    publish(intake, 1, 0);
    REQUIRE(worker.take_grants(4) == samples_of(0, 2));
    worker.send_group(0, 0, 0, 1);
    worker.send({1, 1}, 0, 1);
    REQUIRE(worker.drain());
  }
  rl::StepRules rules = make_rules(2, 0);
  rules.group_size = 3;
  rl::RolloutIntake intake(options_of(dir, 2, {{1, 0}}), rules, 4);
  // The journal is read before the first weights are out, and with them the grants: publishing is
  // another thread's.
  CHECK_FALSE(take_step(intake, 1, milliseconds(300)).has_value());
  CHECK(intake.counters().accepted == 0);
  FakeWorker worker(intake, 100);
  publish(intake, 2, 0);
  const std::set<Sample> wanted{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}};
  REQUIRE(worker.take_grants(6) == wanted);
  for (const auto& [group, sample] : wanted) {
    bridge::Rollout r =
        make_rollout(group, sample, 3, static_cast<uint32_t>(10 + 3 * group + sample));
    r.versions = {{0, 0, static_cast<int64_t>(r.completion_ids.size())}};
    r.trainer_term = 2;
    worker.send(r);
  }
  const auto step = take_step(intake, 1, kPatience);
  REQUIRE(step.has_value());
  CHECK(samples_in(*step) == wanted);
  for (const auto& r : *step) {
    CHECK(r.trainer_term == 2);
  }
  CHECK(intake.counters().dropped_stale == 3);
  const auto messages = intake.drain_messages();
  CHECK(std::count_if(messages.begin(), messages.end(), [](const rl::IntakeMessage& message) {
          return message.text.find("journal: 3 rollouts dropped (invalid_field)") !=
                     std::string::npos &&
                 message.text.find("group_size 2, group 0 has 3") != std::string::npos;
        }) == 1);
}

TEST_CASE("a rollout of an earlier start's group size does not stop a grant", "[restart]") {
  const TempDir dir;
  {
    DirectTrainer life(with_policy(options_of(dir, 1), make_rules(2, 0)));
    life.state().open_steps(1, 1);
  }
  rl::StepRules rules = make_rules(2, 0);
  rules.group_size = 3;
  DirectTrainer life(with_policy(options_of(dir, 2, {{1, 0}}), rules));
  life.publish(0);
  life.bring_in("a", 0, 100);
  const bridge::AckBody ack = life.deliver("a", rollout_under(0, 0, 1, 2));
  CHECK(ack.status == "REJECTED");
  CHECK(ack.reason == "invalid_field");
  life.state().open_steps(1, 1);
  CHECK(life.take_credits("a").size() == 6);
}
