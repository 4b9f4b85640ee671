// Guards the keys bridge.* on their way to the trainer's endpoint: one that is read and goes
// nowhere, one in the wrong unit, and values that mean nothing.
#include "rl/rollouts/trainer_options.h"

#include <catch2/catch.hpp>

#include "rl/config/load.h"

using namespace ringside;
using std::chrono::milliseconds;

namespace {

bridge::TrainerOptions options_with(const std::vector<std::string>& words) {
  return rl::trainer_options(rl::load_config_or_throw({}, words).bridge, "run", 7,
                             "/run/bridge/journal");
}

}  // namespace

TEST_CASE("every key of the bridge reaches the endpoint in its unit") {
  const auto options = options_with(
      {"bridge.rollout_address=tcp://127.0.0.1:5001", "bridge.weights_address=tcp://127.0.0.1:5002",
       "bridge.heartbeat_s=0.25", "bridge.worker_timeout_s=3.5", "bridge.pause_timeout_s=90.5",
       "bridge.assignment_timeout_s=7.5", "bridge.max_queued_mb=3", "bridge.journal_max_mb=5000",
       "bridge.journal_fsync=always"});
  CHECK(options.rollout_address == "tcp://127.0.0.1:5001");
  CHECK(options.weights_address == "tcp://127.0.0.1:5002");
  CHECK(options.run_id == "run");
  CHECK(options.trainer_term == 7);
  CHECK(options.journal.directory == "/run/bridge/journal");
  CHECK(options.heartbeat_interval == milliseconds(250));
  CHECK(options.worker_timeout == milliseconds(3500));
  CHECK(options.pause_timeout == milliseconds(90500));
  CHECK(options.assignment_timeout == milliseconds(7500));
  CHECK(options.max_queued_bytes == 3 * 1024 * 1024);
  CHECK(options.journal.max_bytes == uint64_t{5000} * 1024 * 1024);
  CHECK(options.journal.fsync == bridge::FsyncPolicy::kEvery);
  CHECK_FALSE(options.curve.has_value());
}

TEST_CASE("the configuration's defaults are the endpoint's own") {
  const auto options = options_with({});
  const bridge::TrainerOptions own;
  CHECK(options.pause_timeout == own.pause_timeout);
  CHECK(options.assignment_timeout == own.assignment_timeout);
  CHECK(options.max_queued_bytes == own.max_queued_bytes);
  CHECK(options.journal.max_bytes == own.journal.max_bytes);
  CHECK(options.heartbeat_interval == own.heartbeat_interval);
  CHECK(options.worker_timeout == own.worker_timeout);
  CHECK(options.journal.fsync == own.journal.fsync);
  CHECK(options_with({"bridge.journal_max_mb=0"}).journal.max_bytes == 0);  // no limit
}

TEST_CASE("values that mean nothing are refused by the key's name") {
  for (const std::string word :
       {"bridge.pause_timeout_s=0", "bridge.pause_timeout_s=-1", "bridge.pause_timeout_s=1e10",
        "bridge.pause_timeout_s=0.5", "bridge.assignment_timeout_s=0",
        "bridge.assignment_timeout_s=-1", "bridge.assignment_timeout_s=1e10",
        "bridge.max_queued_mb=0", "bridge.max_queued_mb=-3", "bridge.max_queued_mb=2000000000",
        "bridge.max_queued_mb=1.5", "bridge.journal_max_mb=-1",
        "bridge.journal_max_mb=2000000000"}) {
    INFO(word);
    CHECK_THROWS_WITH(options_with({word}), Catch::Contains(word.substr(0, word.find('='))));
  }
}
