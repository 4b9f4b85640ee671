// Guards: a reader that takes half a line for a whole one or misses a replaced file; a summary
// whose shares of time do not add up; stage times that are counted twice or lost.
#include "rl/report/run_summary.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <stdexcept>

#include "rl/report/metrics_writer.h"
#include "rl/report/stage_times.h"
#include "tests/support/temporary_directory.h"

namespace ringside::rl {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("metrics read back as written, also those that JSON cannot hold") {
  const test::TemporaryDirectory folder;
  const auto path = folder.path() / "metrics.jsonl";
  CHECK(read_metrics(path).empty());
  MetricsWriter writer(path, -1);
  writer.write(0, {{"eval_reward", 0.25}});
  writer.write(1, {{"reward", 0.1}, {"loss", -INFINITY}, {"kl", NAN}}, {{{"loss", 2.0}}});
  const auto lines = read_metrics(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].step == 0);
  CHECK(lines[0].metrics == Metrics{{"eval_reward", 0.25}});
  CHECK(lines[1].step == 1);
  REQUIRE(lines[1].metrics.size() == 3);
  CHECK(find_metric(lines[1].metrics, "reward") == 0.1);
  CHECK(find_metric(lines[1].metrics, "loss") == -INFINITY);
  CHECK(std::isnan(*find_metric(lines[1].metrics, "kl")));
  CHECK_FALSE(find_metric(lines[1].metrics, "updates"));
}

TEST_CASE("a follower reads whole lines once, and starts again when the file is replaced") {
  const test::TemporaryDirectory folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsFollower follower(path);
  CHECK_FALSE(follower.poll());
  std::ofstream(path) << "{\"step\": 1, \"reward\": 0.5}\n{\"step\": 2, \"rew";
  CHECK(follower.poll());
  CHECK(follower.lines().size() == 1);
  CHECK_FALSE(follower.poll());
  std::ofstream(path, std::ios::app) << "ard\": 0.75}\n";
  CHECK(follower.poll());
  REQUIRE(follower.lines().size() == 2);
  CHECK(find_metric(follower.lines()[1].metrics, "reward") == 0.75);
  { MetricsWriter resumed(path, 1); }  // drops step 2
  CHECK(follower.poll());
  CHECK(follower.lines().size() == 1);
  std::ofstream(path, std::ios::app) << "{\"step\": 2, \"reward\": \"high\"}\n";
  CHECK_THROWS_WITH(follower.poll(), Contains("metrics.jsonl:2") && Contains("expected a number"));
}

TEST_CASE("a summary tells rewards at both ends, evaluations, and where the time went") {
  std::vector<MetricsLine> lines{{0, {{"eval_reward", 0.2}}}};
  for (int step = 1; step <= 10; ++step) {
    lines.push_back({step,
                     {{"reward", step / 10.0},
                      {"time/train", 3.0},
                      {"time/wait_rollouts", 6.0},
                      {"step_time", 10.0}}});
  }
  lines[5].metrics.emplace_back("eval_reward", 0.7);
  lines[10].metrics.emplace_back("eval_reward", 0.6);
  lines[10].metrics.emplace_back("eval/hard/reward", 0.1);
  lines[10].metrics.emplace_back("eval/hard/pass@1", 0.1);
  CHECK(summarize_run(lines) ==
        std::vector<std::string>{
            "reward 0.15 in the first 2 steps, 0.95 in the last 2",
            "eval_reward 0.2 at step 0, 0.6 at step 10, best 0.7 at step 5",
            "eval/hard/reward 0.1 at step 10",
            "10 steps took 1:40: waiting for rollouts 60 %, training 30 %, other 10 %"});
  CHECK(summarize_run({}).empty());
  // Fine-tuning: the loss, and the least evaluation is the best.
  const std::vector<MetricsLine> sft{{1, {{"loss", 2.0}, {"eval_loss", 2.5}, {"step_time", 1.0}}},
                                     {2, {{"loss", 1.0}, {"eval_loss", 1.5}, {"step_time", 1.0}}}};
  CHECK(summarize_run(sft) ==
        std::vector<std::string>{"loss 2 in the first step, 1 in the last",
                                 "eval_loss 2.5 at step 1, 1.5 at step 2, best 1.5 at step 2",
                                 "2 steps took 0:02: other 100 %"});
}

TEST_CASE("stage times are summed by stage, lie within the step's, and start again at each step") {
  StageTimes times;
  CHECK(times.time("train", [] { return 7; }) == 7);
  CHECK_THROWS_AS(times.time("save", [] { throw std::runtime_error("full"); }), std::runtime_error);
  const Metrics first = times.take();
  REQUIRE(first.size() == 3);
  const double save = find_metric(first, "time/save").value();
  const double train = find_metric(first, "time/train").value();
  CHECK((save >= 0.0 && train >= 0.0));
  CHECK(save + train <= find_metric(first, "step_time").value());
  const Metrics second = times.take();
  REQUIRE(second.size() == 3);
  CHECK(find_metric(second, "time/save") == 0.0);
  CHECK(find_metric(second, "time/train") == 0.0);
  CHECK(find_metric(second, "step_time").value() >= 0.0);
}

}  // namespace
}  // namespace ringside::rl
