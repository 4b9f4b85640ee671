// Estimator remax: the baseline is the reward of a greedy completion that the worker makes beside
// each group, and that is not trained on.
#include <ATen/ATen.h>

#include <fstream>

#include "tests/rl/small_runs.h"

namespace ringside::test {
namespace {

TEST_CASE("remax: advantages are rewards less that of the group's greedy completion", "[remax]") {
  const SmallModel model;
  for (const int64_t size : {1, 3}) {
    CAPTURE(size);
    const rl::Config config = model.config({"algorithm.advantage.estimator=remax",
                                            "rollout.group_size=" + std::to_string(size),
                                            "train.steps=2", "log.rollouts=true"});
    const TemporaryDirectory run_dir;
    const auto metrics = live_run(config, run_dir.path());
    std::ifstream file(run_dir.path() / "rollouts.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string text; std::getline(file, text);) {
      lines.push_back(nlohmann::json::parse(text));
    }
    REQUIRE(lines.size() == static_cast<std::size_t>(2 * 4 * (size + 1)));
    std::map<std::string, nlohmann::json> greedy_of;  // by step and prompt
    double baselines = 0, tokens = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const nlohmann::json& greedy = lines[i / (size + 1) * (size + 1) + size];
      const bool is_greedy = i % (size + 1) == static_cast<std::size_t>(size);
      CHECK(lines[i].at("sample_index").get<int64_t>() == static_cast<int64_t>(i) % (size + 1));
      const double reward = lines[i].at("rewards")[0][1], baseline = greedy.at("rewards")[0][1];
      for (const nlohmann::json& advantage : lines[i].at("advantages")) {
        if (is_greedy) {
          CHECK(advantage.is_null());
        } else {
          CHECK(advantage.get<double>() == Approx(reward - baseline).margin(1e-12));
          tokens += lines[i].at("step") == 1 ? 1 : 0;
        }
      }
      if (is_greedy) {
        CHECK(lines[i].at("top_k") == 1);
        baselines += lines[i].at("step") == 1 ? baseline / 4 : 0;
      }
    }
    CHECK(metrics.front().at("reward_greedy").get<double>() == Approx(baselines));
    // Only the others are trained on and counted.
    CHECK(metrics.front().at("completions/mean_length").get<double>() ==
          Approx(tokens / static_cast<double>(4 * size)));
    // The run's own file trains again, to the same first step.
    const RecordedRun again = recorded_run(config, run_dir.path() / "rollouts.jsonl");
    CHECK(again.metrics.front().at("loss").get<double>() ==
          Approx(metrics.front().at("loss").get<double>()).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace ringside::test
