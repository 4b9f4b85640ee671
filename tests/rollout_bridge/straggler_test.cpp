// Guards steps that go on without samples that do not come: none is given up too early, in too
// small a group or while nobody waits, a late rollout counts nothing, and a restart trains on the
// same samples.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "rollout_bridge/trainer/stragglers.h"
#include "tests/rollout_bridge/started_trainer.h"

namespace ringside::bridge {
namespace {

using namespace test;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{5000};

void be_impatient(TrainerOptions& options) {
  options.worker_timeout = milliseconds(100000000);
  options.policy.straggler_timeout = kTimeout;
}

// Delivers samples [0, count) of group 0 of four.
void deliver_first(DirectTrainer& trainer, const std::string& worker, int32_t count) {
  for (int32_t sample = 0; sample < count; ++sample) {
    REQUIRE(trainer.deliver(worker, rollout_under(0, 0, sample, 4)).status == "ACCEPTED");
  }
}

// The step's rollouts once `span` has passed; none while samples are missing.
std::vector<Rollout> take_after(DirectTrainer& trainer, milliseconds span, int64_t step = 1) {
  trainer.advance(span);
  trainer.tick();
  trainer.state().collect();
  const auto messages = trainer.state().take(step);
  return messages ? read_rollouts(*messages).value() : std::vector<Rollout>();
}

TEST_CASE("a step goes on without a sample whose time is over", "[straggler]") {
  StartedTrainer trainer({{"w", 4}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  REQUIRE(trainer.take_credits("w").size() == 4);
  deliver_first(trainer, "w", 3);
  REQUIRE(take_after(trainer, milliseconds(4900)).empty());
  CHECK(trainer.in_flight("w") == 1);
  const auto step = take_after(trainer, milliseconds(200));
  REQUIRE(step.size() == 4);
  CHECK(step[2] == rollout_under(0, 0, 2, 4));
  CHECK(has_failed(step[3]));
  CHECK(step[3].sample_index == 3);
  CHECK(step[3].completion_ids.empty());
  CHECK(step[3].prompt_ids == step[0].prompt_ids);
  CHECK(step[3].temperature == step[0].temperature);
  CHECK(validate(step[3]).ok());
  CHECK(trainer.state().counters().groups.stragglers == 1);
  CHECK(trainer.events_with("step 1 goes on without 1 sample that did not come within 5.0 s: "
                            "sample 3 of group 0 of worker w") == 1);
  // Its holder need not make it. If it does, the rollout counts nothing.
  const auto credits = trainer.bodies<CreditBody>("w", MessageType::kCredit);
  REQUIRE(credits.size() == 1);
  REQUIRE(credits[0].withdrawn.size() == 1);
  CHECK(credits[0].withdrawn[0].group_id == 0);
  CHECK(credits[0].withdrawn[0].sample_indices == std::vector<int32_t>{3});
  CHECK(trainer.in_flight("w") == 0);
  CHECK(trainer.deliver("w", rollout_under(0, 0, 3, 4)).status == "DUPLICATE");
  CHECK(trainer.state().counters().duplicate == 1);
}

TEST_CASE("a late rollout is a duplicate before its step is taken, too", "[straggler]") {
  StartedTrainer trainer({{"w", 8}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  deliver_first(trainer, "w", 2);
  REQUIRE(take_after(trainer, milliseconds(0)).empty());
  trainer.advance(milliseconds(5100));
  trainer.tick();
  CHECK(trainer.deliver("w", rollout_under(0, 0, 3, 4)).status == "DUPLICATE");
  CHECK(take_after(trainer, milliseconds(0)).size() == 4);
  CHECK(trainer.state().counters().groups.stragglers == 2);
}

TEST_CASE("a group with too few rollouts is waited for, and failed ones do not count",
          "[straggler]") {
  StartedTrainer trainer({{"w", 4}}, [](TrainerOptions& options) {
    be_impatient(options);
    options.max_attempts = 1;
  });
  trainer.grant({{0, 4, 0}});
  deliver_first(trainer, "w", 1);
  Rollout failed = rollout_under(0, 0, 1, 4);
  failed.finish_reason = FinishReason::kError;
  REQUIRE(trainer.deliver("w", failed).status == "ACCEPTED");
  REQUIRE(take_after(trainer, milliseconds(0)).empty());
  CHECK(take_after(trainer, milliseconds(60000)).empty());
  CHECK(trainer.in_flight("w") == 2);
  REQUIRE(trainer.deliver("w", rollout_under(0, 0, 2, 4)).status == "ACCEPTED");
  CHECK(take_after(trainer, milliseconds(200)).size() == 4);
}

TEST_CASE("nothing is given up while nobody waits for the step", "[straggler]") {
  StartedTrainer trainer({{"w", 8}}, be_impatient);
  trainer.grant({{0, 4, 0}, {1, 4, 0}});
  deliver_first(trainer, "w", 3);
  for (const int32_t sample : {0, 1, 2}) {
    REQUIRE(trainer.deliver("w", rollout_under(0, 1, sample, 4)).status == "ACCEPTED");
  }
  trainer.advance(milliseconds(60000));
  trainer.tick();
  CHECK(trainer.in_flight("w") == 2);
  REQUIRE(take_after(trainer, milliseconds(0)).empty());  // now somebody does, for step 1
  CHECK(take_after(trainer, milliseconds(200)).size() == 4);
  CHECK(trainer.in_flight("w") == 1);
}

TEST_CASE("a sample that no worker was asked for is no straggler", "[straggler]") {
  StartedTrainer trainer({{"w", 2}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  REQUIRE(trainer.take_credits("w").size() == 2);
  trainer.heartbeat("w", "paused");  // it gets no more
  deliver_first(trainer, "w", 2);
  REQUIRE(take_after(trainer, milliseconds(0)).empty());
  CHECK(take_after(trainer, milliseconds(60000)).empty());
  trainer.heartbeat("w", "ready");
  REQUIRE(trainer.in_flight("w") == 2);
  CHECK(take_after(trainer, milliseconds(4900)).empty());
  CHECK(take_after(trainer, milliseconds(200)).size() == 4);
}

TEST_CASE("the time of a sample runs on when another worker gets it", "[straggler]") {
  StartedTrainer trainer({{"w", 4}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  deliver_first(trainer, "w", 3);
  REQUIRE(take_after(trainer, milliseconds(3000)).empty());
  trainer.say("w", make_payload(MessageType::kBye, EndBody{"done"}));
  trainer.bring_in("other", 0, 4);
  trainer.tick();
  REQUIRE(trainer.in_flight("other") == 1);
  CHECK(take_after(trainer, milliseconds(1900)).empty());
  CHECK(take_after(trainer, milliseconds(200)).size() == 4);
}

TEST_CASE("a worker that has sent nothing gets no new samples, one that has gets them",
          "[straggler]") {
  StartedTrainer trainer({{"mute", 2}, {"good", 2}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  const auto of_mute = trainer.take_credits("mute");
  REQUIRE(of_mute.size() == 2);
  for (const auto& [group, sample] : trainer.take_credits("good")) {
    REQUIRE(trainer.deliver("good", rollout_under(0, group, sample, 4)).status == "ACCEPTED");
  }
  REQUIRE(take_after(trainer, milliseconds(0)).empty());
  REQUIRE(take_after(trainer, milliseconds(5100)).size() == 4);
  trainer.grant({{1, 4, 0}});
  CHECK(trainer.in_flight("mute") == 0);
  const auto [group, sample] = *of_mute.begin();
  CHECK(trainer.deliver("mute", rollout_under(0, group, sample, 4)).status == "DUPLICATE");
  CHECK(trainer.in_flight("mute") == 2);
}

// A trainer start on the journal in `dir`, with group 0 of four samples granted.
struct Start {
  Start(const TempDir& dir, int64_t term, std::map<int64_t, int64_t> newest_of_term = {})
      : trainer(options(dir, term, std::move(newest_of_term))) {
    trainer.publish(0);
    trainer.bring_in("w", 0, 4);
    trainer.state().open_steps(1, 1);
  }
  static TrainerOptions options(const TempDir& dir, int64_t term,
                                std::map<int64_t, int64_t> newest_of_term) {
    HandGrants grants;
    grants.add({{0, 4, 0}});
    TrainerOptions o = trainer_options(dir);
    o.trainer_term = term;
    o.newest_of_term = std::move(newest_of_term);
    o.policy = grants.policy();
    be_impatient(o);
    return o;
  }
  DirectTrainer trainer;
};

// The first start trains without sample 3.
std::vector<Rollout> train_without_one(const TempDir& dir) {
  Start first(dir, 1);
  deliver_first(first.trainer, "w", 3);
  REQUIRE(take_after(first.trainer, milliseconds(0)).empty());
  auto step = take_after(first.trainer, milliseconds(5100));
  REQUIRE(step.size() == 4);
  return step;
}

TEST_CASE("a restart trains on the same samples, without the same ones", "[straggler]") {
  const TempDir dir;
  const auto step = train_without_one(dir);
  Start second(dir, 2, {{1, 0}});
  CHECK(second.trainer.take_credits("w").empty());
  CHECK(take_after(second.trainer, milliseconds(0)) == step);
  CHECK(second.trainer.state().counters().groups.stragglers == 1);
}

TEST_CASE("a stand-in goes with the rollouts that it completed", "[straggler]") {
  const TempDir dir;
  train_without_one(dir);
  {
    Start second(dir, 2, {{1, -1}});  // its weights are lost
    CHECK(second.trainer.take_credits("w").size() == 4);
    CHECK(take_after(second.trainer, milliseconds(0)).empty());
    CHECK(second.trainer.state().counters().groups.stragglers == 0);
    Rollout late = rollout_under(0, 0, 3, 4);
    late.trainer_term = 2;
    REQUIRE(second.trainer.deliver("w", late).status == "ACCEPTED");
  }
  Start third(dir, 3, {{1, -1}, {2, 0}});  // the dead stand-in does not come back
  CHECK(third.trainer.take_credits("w").size() == 3);
  CHECK(third.trainer.state().counters().groups.stragglers == 0);
}

TEST_CASE("no worker may use the id of a stand-in", "[straggler]") {
  StartedTrainer trainer({{"w", 4}}, be_impatient);
  trainer.grant({{0, 4, 0}});
  Rollout rollout = rollout_under(0, 0, 0, 4);
  rollout.rollout_id = make_stand_in(rollout, 3, 1).rollout_id;
  const AckBody ack = trainer.deliver("w", rollout);
  CHECK(ack.status == "REJECTED");
  CHECK_THAT(ack.detail, Contains("only the trainer makes such ids"));
}

}  // namespace
}  // namespace ringside::bridge
