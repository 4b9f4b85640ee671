// Guards what a rollout worker may take from an inference server: completions under the weights it
// names and no others, whatever the server does meanwhile. Every log-prob is compared with the
// named version's own (ServedRun::take).
#include <algorithm>

#include "rl/setup/model_setup.h"
#include "rl/worker/make_server.h"
#include "rl/worker/served_weights.h"
#include "tests/rl/served_run.h"
#include "tests/rollout_bridge/commit_spoiler.h"

using namespace ringside;
using namespace ringside::test;
using rl::Config;
using std::chrono::milliseconds;

namespace {

int64_t version_of(const bridge::Rollout& r) { return r.versions.at(0).version; }

std::vector<int64_t> versions_of(const std::vector<bridge::Rollout>& rollouts) {
  std::vector<int64_t> versions;
  for (const auto& r : rollouts) {
    versions.push_back(version_of(r));
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

// Between events `from` and `to` of the log weights were loaded and then looked at.
bool verified_between(const std::vector<std::string>& log, const std::string& load,
                      std::size_t from, std::size_t to) {
  const std::size_t loaded = find_event(log, load, from);
  return find_event(log, "score", loaded) < to;
}

std::string text_of(const std::vector<std::string>& log) {
  std::string text;
  for (const auto& event : log) {
    text += event + ", ";
  }
  return text;
}

}  // namespace

TEST_CASE(
    "server worker: weights are loaded while paused and looked at before anything is sampled") {
  ServedRun run;
  run.grant(0, 3);
  run.publish(1);
  CHECK(versions_of(run.take(6)) == std::vector<int64_t>(6, 1));
  const auto log = run.server().log();
  INFO(text_of(log));
  const std::vector<std::string> begin(log.begin(), log.begin() + 4);
  CHECK(begin == std::vector<std::string>{"pause abort", "load 1", "resume", "score"});
  CHECK(run.trainer().wait_for_commit(1, 1, kPatience));
  CHECK(run.worker_error().empty());
}

TEST_CASE(
    "server worker: drain: running requests finish on the old weights; no new request starts") {
  ServedRun run;
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().hold();
  run.grant(0, 3);  // six samples, two at a time
  REQUIRE(eventually([&] { return run.server().held() == 2; }));
  run.publish(2);
  std::this_thread::sleep_for(milliseconds(500));  // time to do it wrong
  CHECK(run.server().held() == 2);
  run.server().let_go();
  CHECK(versions_of(run.take(6)) == std::vector<int64_t>{1, 1, 2, 2, 2, 2});
  const auto log = run.server().log();
  INFO(text_of(log));
  const std::size_t second = find_event(log, "sample 1", find_event(log, "sample 1") + 1);
  CHECK(find_event(log, "load 2") < log.size());
  CHECK(second < find_event(log, "load 2"));
  CHECK(verified_between(log, "load 2", second, find_event(log, "sample 2")));
}

TEST_CASE("server worker: abort ends what runs at once and samples it anew") {
  ServedRun run(
      [](Config& config) { config.rollout.server_options.pause = rl::ServerPause::kAbort; });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().hold();
  run.grant(0, 3);
  REQUIRE(eventually([&] { return run.server().held() == 2; }));
  run.publish(2);
  // The server holds for ever: only an abort gets the two out, and the load follows it.
  REQUIRE(run.trainer().wait_for_commit(2, 1, kPatience));
  run.server().let_go();
  CHECK(versions_of(run.take(6)) == std::vector<int64_t>(6, 2));
  CHECK(find_event(run.server().log(), "sample 1") == run.server().log().size());
}

TEST_CASE(
    "server worker: after trouble the weights are loaded and looked at before the next sample") {
  ServedRun run([](Config& config) { config.rollout.server_options.concurrency = 1; });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().fail_samples(1);
  run.grant(0, 2);
  CHECK(versions_of(run.take(4)) == std::vector<int64_t>(4, 1));
  const auto log = run.server().log();
  INFO(text_of(log));
  const std::size_t failed = find_event(log, "fail");
  REQUIRE(failed < log.size());
  CHECK(verified_between(log, "load 1", failed, find_event(log, "sample 1", failed)));
}

TEST_CASE("server worker: a server that lost its weights within a request is found out") {
  ServedRun run([](Config& config) { config.rollout.server_options.concurrency = 1; });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().hold();
  run.grant(0, 2);
  REQUIRE(eventually([&] { return run.server().held() == 1; }));
  run.server().replace(*run.weights(77), "1");  // under the same name: only the log-probs tell
  run.server().fail_samples(1);
  run.server().let_go();
  CHECK(versions_of(run.take(4)) == std::vector<int64_t>(4, 1));
}

TEST_CASE("server worker: answers under another label are not taken") {
  ServedRun run;
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().hold();
  run.grant(0, 3);
  REQUIRE(eventually([&] { return run.server().held() == 2; }));
  run.server().replace(*run.weights(77), "77");
  run.server().let_go();
  CHECK(versions_of(run.take(6)) == std::vector<int64_t>(6, 1));
  const auto log = run.server().log();
  INFO(text_of(log));
  const std::size_t wrong = find_event(log, "sample 77");
  REQUIRE(wrong < log.size());
  CHECK(verified_between(log, "load 1", wrong, find_event(log, "sample 1", wrong)));
}

TEST_CASE("server worker: other weights that came while nothing ran are found out by the probe") {
  ServedRun run;
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().replace(*run.weights(77), "1");
  run.advance(milliseconds(2500));  // longer than a server is trusted
  run.grant(0, 2);
  CHECK(versions_of(run.take(4)) == std::vector<int64_t>(4, 1));
  const auto log = run.server().log();
  INFO(text_of(log));
  CHECK(std::count(log.begin(), log.end(), "load 1") == 2);
}

TEST_CASE(
    "server worker: a load that changed nothing is tried again, and nothing is sampled before one "
    "did") {
  ServedRun run;
  run.grant(0, 2);
  run.publish(1);
  CHECK(versions_of(run.take(4)) == std::vector<int64_t>(4, 1));
  run.server().ignore_loads(2);
  run.publish(2);
  run.grant(2, 2);
  CHECK(run.take(4).size() == 4);
  REQUIRE(run.trainer().wait_for_commit(2, 1, kPatience));
  const auto log = run.server().log();
  INFO(text_of(log));
  const std::size_t first = find_event(log, "load 2"),
                    second = find_event(log, "load 2", first + 1);
  const std::size_t third = find_event(log, "load 2", second + 1);
  REQUIRE(third < log.size());
  CHECK(find_event(log, "load 2", third + 1) == log.size());
  CHECK(find_event(log, "sample 2") > third);
  CHECK(run.worker_error().empty());
}

TEST_CASE("server worker: a server that never takes the weights ends the worker, with the reason") {
  ServedRun run([](Config& config) { config.rollout.server_options.load_timeout_s = 1; });
  run.server().ignore_loads(1000);
  run.grant(0, 1);
  run.publish(1);
  REQUIRE(eventually([&] { return !run.worker_error().empty(); }));
  CHECK_THAT(run.worker_error(), Catch::Contains("did not take version 1") &&
                                     Catch::Contains("log-probs of the probe"));
  CHECK(find_event(run.server().log(), "sample 1") == run.server().log().size());
}

TEST_CASE(
    "server worker: a version offered again after a quarantine is loaded and committed once more") {
  std::unique_ptr<CommitSpoiler> between;
  ServedRun run([&](Config& config) {
    between = std::make_unique<CommitSpoiler>(config.bridge.rollout_address, /*count=*/2);
    config.bridge.rollout_address = between->address();
  });
  run.publish(1);
  run.grant(0, 2);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  CHECK(run.trainer().counters().rejected[static_cast<std::size_t>(bridge::Reason::kChecksum)] ==
        2);
  CHECK(versions_of(run.take(4)) == std::vector<int64_t>(4, 1));
  const auto log = run.server().log();
  INFO(text_of(log));
  CHECK(std::count(log.begin(), log.end(), "load 1") == 3);
  const std::size_t third =
      find_event(log, "load 1", find_event(log, "load 1", find_event(log, "load 1") + 1) + 1);
  CHECK(verified_between(log, "load 1", third, find_event(log, "sample 1")));
  CHECK(run.worker_error().empty());
}

TEST_CASE(
    "server worker: samples that waited in its queue are sampled after the trainer restarted") {
  ServedRun run([](Config& config) { config.rollout.server_options.concurrency = 1; });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().hold();
  run.grant(0, 3);
  REQUIRE(eventually([&] { return run.server().held() == 1; }));  // one runs, the others wait
  run.restart_trainer();
  REQUIRE(eventually([&] { return run.trainer().workers().size() == 1; }));
  run.publish(2);
  run.grant(0, 3);
  run.server().let_go();
  CHECK(run.take(6).size() == 6);
  CHECK(run.worker_error().empty());
}

TEST_CASE("server worker: a sample that the server keeps aborting goes back to the trainer") {
  ServedRun run([](Config& config) { config.rollout.server_options.concurrency = 1; });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.server().abort_samples(1 << 20);
  run.grant(0, 1);
  CHECK(eventually([&] { return run.trainer().counters().requeued > 0; }));
  const auto log = run.server().log();
  CHECK(std::count(log.begin(), log.end(), "abort") >= 3);  // not given up at once
  run.server().abort_samples(0);
  CHECK(versions_of(run.take(2)) == std::vector<int64_t>(2, 1));
  CHECK(run.worker_error().empty());
}

TEST_CASE("server worker: held-out prompts are completed greedily and scored, beside training") {
  ServedRun run([](Config& config) {
    config.rollout.reward = "length";
    config.eval.by = rl::EvalBy::kWorkers;
    config.eval.every = 1;
  });
  run.publish(1);
  REQUIRE(run.trainer().wait_for_commit(1, 1, kPatience));
  run.grant(0, 2);
  run.trainer().open_evaluation(4, 1);
  const auto samples = run.trainer().take_evaluation(kPatience);
  REQUIRE(samples.has_value());
  REQUIRE(samples->size() == 4);
  for (const bridge::HeldOutSample& sample : *samples) {
    CHECK(sample.tokens == 6);
    CHECK(sample.finish_reason == bridge::FinishReason::kLength);
    CHECK(sample.rewards == rl::NamedRewards{{"length", -1.0}});
  }
  CHECK(run.take(4).size() == 4);
  const auto log = run.server().log();
  INFO(text_of(log));
  CHECK(std::count(log.begin(), log.end(), "greedy 1") == 4);
  CHECK(std::count(log.begin(), log.end(), "sample 1") == 4);
  CHECK(run.worker_error().empty());
}

// A server of a large model and a second copy of it would not fit one machine.
TEST_CASE("a worker keeps no copy of the model beside a server that can score texts") {
  ServedRun run;
  const auto server = rl::make_server(
      run.config(), rl::load_model_config(run.config(), run.config().model.path).vocab_size);
  REQUIRE(eventually([&] { return server->connect().ok(); }));
  REQUIRE(server->capabilities().score);
  rl::ServedWeights weights(run.config(), *server);
  CHECK_FALSE(weights.has_copy());
  REQUIRE(weights.install(run.weights(1)).ok());
  CHECK(weights.root_hash() == run.weights(1)->manifest.root_hash);
  CHECK(weights.verify().ok());
  CHECK_FALSE(weights.has_copy());
  // A completion without log-probs: its copy is of the weights that are installed, and stays.
  rl::ShadowModel judge(run.config());
  const std::vector<int64_t> ids{1, 2, 3, 4};
  for (const int64_t version : {1, 2}) {
    if (version == 2) {
      REQUIRE(weights.install(run.weights(version)).ok());
    }
    judge.install(run.weights(version));
    CHECK(weights.score(ids, 0.8) == judge.score(ids, 0.8));
    CHECK(weights.has_copy());
  }
}
