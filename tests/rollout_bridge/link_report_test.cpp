// Guards what a worker without a session says of the reason: nobody there, not let in, keys that do
// not fit; and that leaving a trainer that has gone takes no time.
#include <catch2/catch.hpp>

#include "rollout_bridge/transport/curve_keys.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;
using Catch::Contains;
using std::chrono::milliseconds;

// The reason as soon as it contains `text`, else the last one.
std::string reason_like(const WorkerEndpoint& worker, const std::string& text) {
  LinkReport report;
  (void)eventually([&] {
    report = worker.report();
    return report.why.find(text) != std::string::npos;
  });
  CHECK_FALSE(report.joined);
  return report.why;
}

TEST_CASE("a worker says that nobody takes connections at the trainer's address", "[endpoint]") {
  const WorkerEndpoint worker(worker_options("tcp://127.0.0.1:1", "w"));
  CHECK_THAT(reason_like(worker, "nobody takes"), Contains("nobody takes connections there"));
  CHECK(worker.report().address == "tcp://127.0.0.1:1");
}

TEST_CASE("a worker that is in has no reason to wait", "[endpoint]") {
  const TempDir dir;
  TestTrainer trainer(trainer_options(dir));
  const WorkerEndpoint worker(worker_options(trainer.rollout_address(), "w"));
  CHECK(eventually([&] { return worker.report().joined; }));
  CHECK(worker.report().why.empty());
}

TEST_CASE("a worker says why CURVE does not let it in", "[endpoint][security]") {
  const TempDir dir;
  const KeyPair keys = make_key_pair();
  const KeyPair good = make_key_pair();
  TrainerOptions options = trainer_options(dir);
  options.curve = CurveServer{keys.secret_key, {{good.public_key, "good box"}}};
  TestTrainer trainer(options);
  WorkerOptions mine = worker_options(trainer.rollout_address(), "w");
  SECTION("no keys") {
    const WorkerEndpoint worker(mine);
    CHECK_THAT(reason_like(worker, "CURVE keys"), Contains("asks for CURVE keys"));
  }
  SECTION("a key that the trainer does not know") {
    mine.curve = CurveClient{make_key_pair(), keys.public_key};
    const WorkerEndpoint worker(mine);
    CHECK_THAT(reason_like(worker, "allowed_workers"),
               Contains("does not let this worker's key in"));
  }
  SECTION("another trainer's key") {
    mine.curve = CurveClient{good, make_key_pair().public_key};
    const WorkerEndpoint worker(mine);
    CHECK_THAT(reason_like(worker, "trainer_public"),
               Contains("another key than bridge.curve.trainer_public"));
  }
}

TEST_CASE("leaving after END takes no time, whether the trainer is there or not", "[endpoint]") {
  const TempDir dir;
  auto trainer = std::make_unique<TestTrainer>(trainer_options(dir));
  WorkerEndpoint worker(worker_options(trainer->rollout_address(), "w"));
  REQUIRE(eventually([&] { return worker.report().joined; }));
  trainer->end("done");
  bool ended = false;
  while (!ended) {
    const auto event = worker.poll(kPatience);
    REQUIRE(event.has_value());
    ended = std::holds_alternative<Ended>(*event);
  }
  SECTION("there") {}
  SECTION("gone") { trainer.reset(); }
  const auto begin = std::chrono::steady_clock::now();
  (void)worker.bye("the run has ended", kPatience);
  CHECK(std::chrono::steady_clock::now() - begin < kPatience / 4);
}

TEST_CASE("leaving a trainer that died takes no time", "[endpoint]") {
  const TempDir dir;
  auto trainer = std::make_unique<TestTrainer>(trainer_options(dir));
  WorkerEndpoint worker(worker_options(trainer->rollout_address(), "w"));
  REQUIRE(eventually([&] { return worker.report().joined; }));
  trainer.reset();
  const auto begin = std::chrono::steady_clock::now();
  (void)worker.bye("asked to stop", kPatience);
  CHECK(std::chrono::steady_clock::now() - begin < kPatience / 4);
}

}  // namespace
}  // namespace ringside::bridge
