// Guards: ranks that give up in a collective while another is busy - loading, saving, publishing -
// for longer than collectives may take; a rank that fails while the others wait for ever; a clock
// or a signal of one rank that divides them; a model that has diverged and is saved or published.
#include "sp/mesh/rank_work.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "rl/config/load.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/trainer.h"
#include "rl/trainer/waiting_round.h"
#include "tests/support/assertion_lock.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;
using std::chrono::milliseconds;

namespace {

const fs::path kWorkGoldens = fs::path(RINGSIDE_GOLDENS) / "regression";
constexpr milliseconds kTimeout{1500};
constexpr milliseconds kLonger{3000};

rl::Config work_config(const std::vector<std::string>& words = {}) {
  std::vector<std::string> all{"model.path=" + (kWorkGoldens / "policy").string(),
                               "rollout.group_size=4",
                               "rollout.prompts_per_step=2",
                               "rollout.max_completion_tokens=12",
                               "train.steps=2",
                               "parallel.collective_timeout_s=1.5",
                               "parallel.ulysses_parallel_size=2",
                               "log.progress=lines"};
  all.insert(all.end(), words.begin(), words.end());
  return rl::load_config_or_throw({}, all);
}

// The recorded rollouts, published to at leisure.
class SlowSource final : public rl::RolloutSource {
 public:
  SlowSource(const rl::Config& config, milliseconds delay)
      : file_(rl::make_file_source(kWorkGoldens / "plain.jsonl", config)), delay_(delay) {}

  engine::WeightSink weight_sink(int64_t version, int64_t) override {
    return [this, version](engine::UnitExport& units) {
      while (units.next()) {
      }
      std::this_thread::sleep_for(version == 1 ? delay_ : milliseconds(0));
      published.push_back(version);
    };
  }
  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       milliseconds timeout) override {
    return file_->poll(step, timeout);
  }

  std::vector<int64_t> published;

 private:
  std::unique_ptr<rl::RolloutSource> file_;
  milliseconds delay_;
};

}  // namespace

TEST_CASE(
    "ranks wait for one that works for longer than their collectives may take, and for several",
    "[serial]") {
  const bool all_work = GENERATE(false, true);
  std::atomic<int> done{0};
  test::run_ranks(
      {1, 1, 2},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const auto work = [&] {
          std::this_thread::sleep_for(mesh.rank() == 0 ? kLonger : milliseconds(10));
          ++done;
        };
        sp::run_rank_work(*comms.control(sp::axes::kLoss), rl::waiting_round(work_config()),
                          all_work || mesh.rank() == 0 ? work : std::function<void()>());
        const auto lock = test::assertion_lock();
        CHECK(done == (all_work ? 2 : 1));
      },
      kTimeout);
}

TEST_CASE("a rank whose work fails says so on all of them, the lowest rank in its own words",
          "[serial]") {
  std::vector<std::string> errors(4);
  test::run_ranks({1, 1, 4}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    try {
      sp::run_rank_work(*comms.control(sp::axes::kLoss), milliseconds(100), [&] {
        if (mesh.rank() == 1 || mesh.rank() == 3) {
          throw std::invalid_argument("no such file");
        }
      });
    } catch (const std::exception& error) {
      errors[mesh.rank()] = error.what();
    }
  });
  CHECK(errors == std::vector<std::string>{"rank 1 has failed", "no such file", "rank 1 has failed",
                                           "rank 1 has failed"});
}

TEST_CASE("a save and a publish that take longer than a collective may do not end the run",
          "[serial]") {
  const auto config = work_config({"checkpoint.every=1"});
  const test::TemporaryDirectory dir;
  SlowSource source(config, kLonger);
  test::run_ranks(
      {1, 1, 2},
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const auto slowly = [](int64_t step) {
          if (step == 1) {
            std::this_thread::sleep_for(kLonger);
          }
        };
        rl::TrainingRun run({config, dir.path(), 2, {}, slowly}, mesh, comms);
        rl::train_rl(run, run.ranks().is_main() ? &source : nullptr);
        const auto lock = test::assertion_lock();
        CHECK(run.state().step == 2);
      },
      kTimeout);
  CHECK(source.published == std::vector<int64_t>{0, 1, 2});
  CHECK(rl::checkpoint_step(rl::checkpoint_path(dir.path(), 2)) == 2);
}

TEST_CASE("a signal to any one rank stops all at the same step, with a checkpoint of it",
          "[serial]") {
  const int64_t told = GENERATE(0, 1);
  const auto config = work_config({"train.steps=1000"});
  const test::TemporaryDirectory dir;
  std::vector<int64_t> steps(2);
  test::run_ranks({1, 1, 2}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    int64_t asked = 0;
    const auto signal = [&]() -> int { return mesh.rank() == told && ++asked > 3 ? SIGTERM : 0; };
    rl::TrainingRun run({config, dir.path(), 1000, signal}, mesh, comms);
    SlowSource source(config, milliseconds(0));
    rl::train_rl(run, run.ranks().is_main() ? &source : nullptr);
    const auto lock = test::assertion_lock();
    CHECK(run.stop_signal() == SIGTERM);
    steps[mesh.rank()] = run.state().step;
  });
  CHECK(steps[0] > 0);
  CHECK(steps[0] == steps[1]);
  CHECK(rl::latest_checkpoint(dir.path()) == rl::checkpoint_path(dir.path(), steps[0]));
  CHECK(rl::checkpoint_step(rl::checkpoint_path(dir.path(), steps[0])) == steps[0]);
}

TEST_CASE(
    "weights that an optimizer step made infinite are neither published nor saved, and the error "
    "has step and tensor",
    "[serial]") {
  auto config = work_config({"parallel.ulysses_parallel_size=1", "checkpoint.every=1"});
  config.optimizer.learning_rate = 1e39;  // which a recipe cannot set
  const test::TemporaryDirectory dir;
  SlowSource source(config, milliseconds(0));
  test::run_ranks({1, 1, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    rl::TrainingRun run({config, dir.path(), 2, {}}, mesh, comms);
    CHECK_THROWS_WITH(rl::train_rl(run, &source),
                      Catch::StartsWith("step 1: ") && Catch::Contains("model.") &&
                          Catch::Contains("not finite") &&
                          Catch::Contains("there is no checkpoint yet"));
  });
  CHECK(source.published == std::vector<int64_t>{0});
  CHECK_FALSE(rl::latest_checkpoint(dir.path()).has_value());
}
