// Guards how much work a worker asks for: too much and the first of several gets all of a step, too
// little and batches are small.
#include "rl/worker/worker_link.h"

#include "tests/support/catch.h"

using namespace ringside::rl;

TEST_CASE("an embedded worker asks for its share of a step in whole groups") {
  Config config;
  config.rollout.prompts_per_step = 32;
  config.rollout.group_size = 8;
  CHECK(samples_per_batch(config) == 256);
  CHECK(wanted_samples(config) == 256);
  config.rollout.num_workers = 2;
  CHECK(wanted_samples(config) == 128);
  config.rollout.num_workers = 3;
  CHECK(wanted_samples(config) == 11 * 8);
  config.rollout.num_workers = 100;
  CHECK(wanted_samples(config) == 8);
  config.algorithm.max_staleness = 1;  // the next batch waits while one is made
  CHECK(samples_per_batch(config) == 8);
  CHECK(wanted_samples(config) == 16);
}

TEST_CASE("a worker with a server asks for what runs there at once and a little ahead") {
  Config config;
  config.rollout.server = RolloutServer::kVllm;
  config.rollout.prompts_per_step = 512;
  config.rollout.group_size = 8;
  config.rollout.server_options.concurrency = 64;
  CHECK(wanted_samples(config) == 64 + 16 + 8);
  config.rollout.server_options.concurrency = 1;
  CHECK(wanted_samples(config) == 1 + 8);
}

TEST_CASE(
    "a worker that is told the trainer's rollout address alone takes the weights' address from "
    "WELCOME") {
  Config config;
  config.bridge.rollout_address = "tcp://127.0.0.1:5500";
  const WorkerSettings settings{"w", {}, [] { return false; }};
  CHECK(worker_options(config, settings, {}).rollout_address == "tcp://127.0.0.1:5500");
  CHECK(worker_options(config, settings, {}).weights_address.empty());
  config.bridge.weights_address = "tcp://127.0.0.1:5501";
  CHECK(worker_options(config, settings, {}).weights_address == "tcp://127.0.0.1:5501");
}
