// Guards the restart: a trainer that was killed comes back on the same address with its journal,
// its workers find it, resend what was not acknowledged, take the weights anew, and no sample is
// lost, doubled or trained on twice.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <mutex>
#include <optional>

#include "rollout_bridge/trainer/trainer_term.h"
#include "tests/rollout_bridge/driver.h"

namespace ringside::bridge {
namespace {

using namespace test;

TrainerOptions fixed_options(const TempDir& dir, int32_t ungranted_size = 4) {
  TrainerOptions o = trainer_options(dir, ungranted_size);
  o.rollout_address = "ipc://" + (dir.path() / "rollouts").string();
  o.weights_address = "ipc://" + (dir.path() / "weights").string();
  o.trainer_term = next_trainer_term(dir.path() / "state");
  for (int64_t epoch = 1; epoch < o.trainer_term; ++epoch) {
    o.newest_of_term[epoch] = 100;  // all survived
  }
  return o;
}

TEST_CASE("a restarted trainer gets everything, its workers come back", "[recovery]") {
  const TempDir dir;
  TrainerOptions options = fixed_options(dir);
  TestWorker worker(options.rollout_address, "a");
  std::set<std::pair<int64_t, int32_t>> first;
  {
    TestTrainer trainer(options);
    trainer.publish(make_snapshot("run", options.trainer_term, 0, make_tensors(0)));
    trainer.grant(groups(0, 6, 4, 0));
    for (const Rollout& r : collect(trainer, 24)) {
      first.insert({r.group_id, r.sample_index});
    }
    REQUIRE(first.size() == 24);
    trainer.checkpointed(2);             // of groups 0 and 1
    trainer.grant(groups(6, 2, 4, 99));  // never handed out: no such version yet
  }
  options = fixed_options(dir);
  REQUIRE(options.trainer_term == 2);
  TestTrainer trainer(options);
  trainer.grant(groups(2, 6, 4, 1));  // the groups after the checkpoint
  const auto replayed = collect(trainer, 16);
  REQUIRE(replayed.size() == 16);
  for (const Rollout& r : replayed) {
    CHECK(r.group_id >= 2);
    CHECK(r.group_id < 6);
    CHECK(r.trainer_term == 1);
  }
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(100)).has_value());
  trainer.publish(make_snapshot("run", 2, 1, make_tensors(1)));
  const auto rest = collect(trainer, 8);
  REQUIRE(rest.size() == 8);
  for (const Rollout& r : rest) {
    CHECK(r.trainer_term == 2);
  }
  CHECK(worker.connections() == 2);
  CHECK(worker.installed() == std::vector<int64_t>{0, 1});
}

TEST_CASE("a trainer that comes back at another address is found", "[recovery]") {
  const TempDir dir;
  TrainerOptions options = fixed_options(dir);
  std::mutex mutex;
  std::string now_at = options.rollout_address;
  WorkerOptions found_by_name = worker_options(options.rollout_address, "a");
  found_by_name.resolve = [&]() -> std::optional<std::string> {
    const std::lock_guard lock(mutex);
    return now_at;
  };
  TestWorker worker(found_by_name, {});
  {
    TestTrainer trainer(options);
    trainer.publish(make_snapshot("run", options.trainer_term, 0, make_tensors(0)));
    trainer.grant(groups(0, 1, 4, 0));
    REQUIRE(collect(trainer, 4).size() == 4);
  }
  options = fixed_options(dir);
  options.rollout_address += "-elsewhere";
  options.weights_address += "-elsewhere";
  TestTrainer trainer(options);
  {
    const std::lock_guard lock(mutex);
    now_at = options.rollout_address;
  }
  trainer.grant(groups(0, 2, 4, 1));
  trainer.publish(make_snapshot("run", options.trainer_term, 1, make_tensors(1)));
  CHECK(collect(trainer, 8).size() == 8);
  CHECK(worker.connections() == 2);
}

TEST_CASE("rollouts made while the trainer is away are sent again", "[recovery]") {
  const TempDir dir;
  TrainerOptions options = fixed_options(dir, 5);
  WorkerEndpoint worker(worker_options(options.rollout_address, "a"));
  auto trainer = std::make_unique<TestTrainer>(options);
  REQUIRE(worker.poll(kPatience).has_value());  // Connected
  trainer->grant(groups(0, 1, 5, 0));
  trainer.reset();
  for (int s = 0; s < 5; ++s) {
    REQUIRE(worker.send_rollout(make_rollout(0, s, 5), std::chrono::milliseconds(100)).ok());
  }
  CHECK(worker.pending() == 5);
  options = fixed_options(dir, 5);
  trainer = std::make_unique<TestTrainer>(options);
  CHECK(collect(*trainer, 5).size() == 5);
  CHECK(worker.bye("done", kPatience));
  CHECK(trainer->workers().empty());
}

TEST_CASE("room for unacknowledged rollouts is bounded", "[recovery]") {
  const TempDir dir;
  WorkerOptions options = worker_options("ipc://" + (dir.path() / "nobody").string(), "a");
  options.max_pending = 2;
  WorkerEndpoint worker(options);
  const std::chrono::milliseconds brief(20);
  CHECK(worker.send_rollout(make_rollout(0, 0, 3), brief).ok());
  CHECK(worker.send_rollout(make_rollout(0, 1, 3), brief).ok());
  const Status full = worker.send_rollout(make_rollout(0, 2, 3), brief);
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().reason == Reason::kTimeout);
  Rollout bad = make_rollout(0, 2, 3);
  bad.temperature = 0;
  CHECK_FALSE(worker.bye("nobody there", brief));
  CHECK(worker.send_rollout(bad, brief).error().reason == Reason::kClosed);
}

// The trainer is a process of its own and dies by SIGKILL in the middle of its work.
TEST_CASE("kill -9 of the trainer loses no acknowledged rollout", "[recovery]") {
  const TempDir dir;
  TrainerOptions options = fixed_options(dir);
  const pid_t child = ::fork();
  if (child == 0) {
    TestTrainer trainer(options);
    trainer.publish(make_snapshot("run", options.trainer_term, 0, make_tensors(0)));
    trainer.grant(groups(0, 40, 4, 0));
    while (trainer.counters().accepted < 60) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::raise(SIGKILL);
  }
  TestWorker worker(options.rollout_address, "a");
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  options = fixed_options(dir);
  TestTrainer trainer(options);
  trainer.publish(make_snapshot("run", options.trainer_term, 0, make_tensors(0)));
  trainer.grant(groups(0, 40, 4, 0));
  CHECK(collect(trainer, 160).size() == 160);
  CHECK_FALSE(trainer.pop(std::chrono::milliseconds(100)).has_value());
  // The samples of the first life were kept or resent, not made again.
  CHECK(worker.delivered() == 160);
}

}  // namespace
}  // namespace ringside::bridge
