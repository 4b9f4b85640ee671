// Guards what a worker's session makes of grants, acknowledgements and new sessions: a sample that
// is filtered out and held by nobody is waited for as long as the run lasts.
#include <catch2/catch.hpp>

#include "tests/rollout_bridge/direct_trainer.h"
#include "tests/rollout_bridge/direct_worker.h"

using namespace ringside::bridge;
using namespace ringside::bridge::test;
using Samples = std::vector<std::pair<int64_t, int32_t>>;

TEST_CASE("samples granted again in a new session reach the owner again", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1, 2});
  CHECK(worker.granted() == Samples{{7, 0}, {7, 1}, {7, 2}});
  worker.cut();
  worker.join();
  worker.grant(7, {0, 1, 2});
  CHECK(worker.granted() == Samples{{7, 0}, {7, 1}, {7, 2}});
}

TEST_CASE("a sample whose rollout waits for its acknowledgement is not granted again", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1});
  CHECK(worker.granted().size() == 2);
  const Rollout rollout = rollout_under(0, 7, 0, 4);
  REQUIRE(worker.state().send_rollout(rollout).ok());
  worker.cut();
  worker.join();
  worker.grant(7, {0, 1});
  CHECK(worker.granted() == Samples{{7, 1}});
}

TEST_CASE(
    "a rollout sent between a grant and the owner's look at it takes its sample out of the grant",
    "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1});
  (void)worker.granted();
  worker.cut();
  worker.join();
  worker.grant(7, {0, 1});  // the owner is sampling and has not seen it yet
  const Rollout rollout = rollout_under(0, 7, 0, 4);
  REQUIRE(worker.state().send_rollout(rollout).ok());
  SECTION("not acknowledged yet") {}
  SECTION("acknowledged before the owner looks") {
    (void)worker.sent();
    worker.ack(rollout.rollout_id, "ACCEPTED");
    CHECK(worker.state().pending() == 0);
  }
  CHECK(worker.granted() == Samples{{7, 1}});
}

TEST_CASE("a sample granted after its rollout was answered is sampled again", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0});
  (void)worker.granted();
  for (const char* status : {"REQUEUED", "REJECTED"}) {
    const Rollout rollout = rollout_under(0, 7, 0, 4);
    REQUIRE(worker.state().send_rollout(rollout).ok());
    (void)worker.sent();
    worker.ack(rollout.rollout_id, status);
    worker.grant(7, {0}, 1);
    CHECK(worker.granted() == Samples{{7, 0}});
  }
}
