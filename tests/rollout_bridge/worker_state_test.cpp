// Guards what a worker's session makes of grants, acknowledgements and new sessions: a sample that
// is filtered out and held by nobody is waited for as long as the run lasts.
#include <catch2/catch.hpp>

#include "tests/rollout_bridge/direct_trainer.h"
#include "tests/rollout_bridge/direct_worker.h"

using namespace ringside::bridge;
using namespace ringside::bridge::test;
using SampleNames = std::vector<std::pair<int64_t, int32_t>>;

TEST_CASE("samples granted again in a new session reach the owner again", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1, 2});
  CHECK(worker.granted() == SampleNames{{7, 0}, {7, 1}, {7, 2}});
  worker.cut();
  worker.join();
  worker.grant(7, {0, 1, 2});
  CHECK(worker.granted() == SampleNames{{7, 0}, {7, 1}, {7, 2}});
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
  CHECK(worker.granted() == SampleNames{{7, 1}});
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
    CHECK(worker.state().rollouts().size() == 0);
  }
  CHECK(worker.granted() == SampleNames{{7, 1}});
}

TEST_CASE("a session that ended for lack of progress is followed by none until there is progress",
          "[worker]") {
  DirectWorker worker;
  worker.join();
  const WorkerSession& session = worker.state().session();
  ErrorBody error{"timeout", "no progress"};
  worker.error(error);
  CHECK(session.link() == Link::kAway);
  worker.advance(std::chrono::hours(1));
  (void)worker.sent();
  CHECK(session.next_attempt() > worker.now());
  worker.state().touch(worker.now());
  CHECK(session.next_attempt() <= worker.now());
}

TEST_CASE("an answer without a rollout_id is for the rollout that was sent first", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1});
  (void)worker.granted();
  for (const int32_t sample : {0, 1}) {
    REQUIRE(worker.state().send_rollout(rollout_under(0, 7, sample, 4)).ok());
  }
  const std::string first = rollout_under(0, 7, 0, 4).rollout_id;
  const std::string second = rollout_under(0, 7, 1, 4).rollout_id;
  std::string expected = first;
  std::size_t left = 1;
  SECTION("in the order in which they were made") { (void)worker.sent(); }
  SECTION("in the order of the latest sending") {
    (void)worker.sent();
    worker.ack(first, "BUSY");
    worker.advance(std::chrono::seconds(2));
    (void)worker.sent();
    expected = second;
  }
  SECTION("nothing was sent") {
    expected = "";
    left = 2;
  }
  worker.ack("", "REJECTED");
  CHECK(worker.state().rollouts().size() == left);
  const auto event = worker.state().poll();
  const auto* rejected = event ? std::get_if<RolloutRejected>(&*event) : nullptr;
  CHECK((rejected != nullptr ? rejected->rollout_id : "") == expected);
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
    CHECK(worker.granted() == SampleNames{{7, 0}});
  }
}

TEST_CASE("a rollout whose names do not fit a message is refused and the worker goes on",
          "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(7, {0, 1});
  Rollout rollout = rollout_under(0, 7, 0, 4);
  for (char c = 'a'; c < 'm'; ++c) {
    rollout.rewards.emplace_back(std::string(4096, c), 1.0);
  }
  Status sent = Success{};
  REQUIRE_NOTHROW(sent = worker.state().send_rollout(rollout));
  REQUIRE_FALSE(sent.ok());
  CHECK(sent.error().reason == Reason::kInvalidField);
  CHECK(worker.state().rollouts().size() == 0);
}

TEST_CASE("a trainer of another protocol version ends the worker", "[worker]") {
  DirectWorker worker;
  worker.join();
  while (worker.state().poll()) {
  }
  worker.state().on_message(Error{Reason::kUnsupported, "protocol version 1, expected 3"},
                            worker.now());
  const auto event = worker.state().poll();
  REQUIRE(event.has_value());
  const auto* failed = std::get_if<Failed>(&*event);
  REQUIRE(failed != nullptr);
  CHECK(failed->reason == "unsupported");
  CHECK(failed->detail.find("protocol version 1") != std::string::npos);
  CHECK(worker.state().session().link() == Link::kOver);
}

TEST_CASE("withdrawn samples reach the worker's loop after the grants before them", "[worker]") {
  DirectWorker worker;
  worker.join();
  worker.grant(3, {0, 1});
  CreditBody credit;
  credit.withdrawn.push_back({3, {1}});
  worker.say(make_payload(MessageType::kCredit, credit));
  std::vector<Granted> seen;
  while (const auto event = worker.state().poll()) {
    if (const auto* granted = std::get_if<Granted>(&*event)) {
      seen.push_back(*granted);
    }
  }
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].groups.at(0).sample_indices == std::vector<int32_t>{0, 1});
  CHECK(seen[1].groups.empty());
  CHECK(seen[1].withdrawn.at(0).group_id == 3);
  CHECK(seen[1].withdrawn.at(0).sample_indices == std::vector<int32_t>{1});
}
