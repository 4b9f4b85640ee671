// Guards: a run directory that is overwritten in silence - by another configuration, another
// trainer, or a second try - and a start that is refused although nothing would be lost.
#include "rl/trainer/run_directory.h"

#include <unistd.h>

#include <fstream>

#include "rl/config/load.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
namespace fs = std::filesystem;

namespace {

rl::Config config_of(const std::vector<std::string>& words) {
  return rl::load_config_or_throw({}, words);
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// A directory in which `words` were trained for two steps, without a checkpoint.
void train_before(const fs::path& dir, const std::vector<std::string>& words) {
  rl::begin_start(dir, config_of(words), {});
  write(dir / "metrics.jsonl", "{\"step\": 1}\n{\"step\": 2}\n");
  write(dir / "bridge/journal/journal.bin", "rollouts");
}

}  // namespace

TEST_CASE(
    "a changed recipe is refused key by key where steps were trained, and accepted when asked "
    "for") {
  const test::TemporaryDirectory dir;
  train_before(dir.path(), {"seed=1", "model.path=/a", "log.level=warn"});
  const auto changed = config_of({"seed=2", "model.path=/b", "log.level=info", "train.steps=200"});
  const auto plan = rl::plan_start(dir.path(), changed, 200, false);
  CHECK(plan.kind == rl::StartKind::kRefused);
  REQUIRE(plan.lines.size() == 4);
  CHECK_THAT(plan.lines[0], Catch::Contains(dir.path().string()));
  CHECK(plan.lines[1] == "  seed: was 1, now 2");
  CHECK(plan.lines[2] == "  model.path: was /a, now /b");
  CHECK_THAT(plan.lines[3], Catch::Contains("--accept-changes"));

  const auto accepted = rl::plan_start(dir.path(), changed, 200, true);
  CHECK(accepted.kind == rl::StartKind::kTrain);
  CHECK(accepted.lines ==
        std::vector<std::string>{"seed: was 1, now 2", "model.path: was /a, now /b",
                                 "train.steps: was 100, now 200", "log.level: was warn, now info"});
  // What was sampled for the old recipe is not trained on under the new one.
  CHECK(accepted.drop_journal);
  rl::begin_start(dir.path(), changed, accepted);
  CHECK_FALSE(fs::exists(dir.path() / "bridge/journal"));
  CHECK(rl::plan_start(dir.path(), changed, 200, false).lines.empty());
}

TEST_CASE(
    "keys that say how and where a run trains may change, and any key before the first step") {
  const test::TemporaryDirectory dir;
  train_before(dir.path(), {"seed=1"});
  const auto plan = rl::plan_start(dir.path(),
                                   config_of({"seed=1", "parallel.ulysses_parallel_size=2",
                                              "bridge.heartbeat_s=2", "checkpoint.every=3"}),
                                   100, false);
  CHECK(plan.kind == rl::StartKind::kTrain);
  CHECK(plan.lines.size() == 3);
  CHECK_FALSE(plan.drop_journal);
  fs::remove(dir.path() / "metrics.jsonl");
  const auto before_steps = rl::plan_start(dir.path(), config_of({"seed=2"}), 100, false);
  CHECK(before_steps.kind == rl::StartKind::kTrain);
  CHECK(before_steps.drop_journal);
}

TEST_CASE("contents that changed under the same path are refused as changed keys are") {
  const test::TemporaryDirectory dir;
  train_before(dir.path(), {"model.path=/a", "data.train=/d.jsonl"});
  const auto config = config_of({"model.path=/a", "data.train=/d.jsonl"});
  const rl::SourceFingerprints sources{{"model.path", "1"}, {"data.train", "2"}};
  rl::begin_start(dir.path(), config, {}, sources);
  write(dir.path() / "bridge/journal/journal.bin", "rollouts");
  CHECK(rl::plan_start(dir.path(), config, 100, false, sources).lines.empty());
  const auto changed = sources.at("model.path") + "x";
  const auto plan = rl::plan_start(dir.path(), config, 100, false,
                                   {{"model.path", changed}, {"data.train", "2"}});
  CHECK(plan.kind == rl::StartKind::kRefused);
  CHECK(plan.lines.at(1) == "  model.path: the contents of its files have changed");
  const auto accepted =
      rl::plan_start(dir.path(), config, 100, true, {{"model.path", changed}, {"data.train", "2"}});
  CHECK(accepted.kind == rl::StartKind::kTrain);
  CHECK(accepted.drop_journal);
  // A key that one side lacks is not compared, and one whose path has changed is told once.
  CHECK(rl::plan_start(dir.path(), config, 100, false, {}).lines.empty());
  const auto moved = rl::plan_start(dir.path(), config_of({"model.path=/b", "data.train=/d.jsonl"}),
                                    100, true, {{"model.path", changed}});
  CHECK(moved.lines == std::vector<std::string>{"model.path: was /a, now /b"});
  write(dir.path() / "sources.json", "{\"model");
  CHECK_THROWS_WITH(rl::plan_start(dir.path(), config, 100, false, sources),
                    Catch::Contains("sources.json: expected a JSON object"));
}

TEST_CASE("a directory is locked by one trainer, whose pid the next one is told") {
  const test::TemporaryDirectory dir;
  {
    const rl::RunDirectoryLock lock(dir.path() / "run");
    CHECK_THROWS_WITH(rl::RunDirectoryLock(dir.path() / "run"),
                      Catch::Contains("(pid " + std::to_string(getpid()) + ")") &&
                          Catch::Contains("run; expected"));
  }
  CHECK_NOTHROW(rl::RunDirectoryLock(dir.path() / "run"));
}

TEST_CASE("metrics of a try without a checkpoint are set aside under the next free number") {
  const test::TemporaryDirectory dir;
  CHECK_FALSE(rl::set_earlier_try_aside(dir.path()).has_value());
  for (int number = 1; number <= 2; ++number) {
    write(dir.path() / "metrics.jsonl", "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3");
    write(dir.path() / "samples.jsonl", "{}\n");
    write(dir.path() / "tensorboard/events", "x");
    const auto earlier = rl::set_earlier_try_aside(dir.path());
    REQUIRE(earlier.has_value());
    CHECK(earlier->steps == 2);
    CHECK(earlier->kept == dir.path() / ("metrics." + std::to_string(number) + ".jsonl"));
    CHECK(fs::exists(earlier->kept));
    CHECK_FALSE(fs::exists(dir.path() / "metrics.jsonl"));
    CHECK(fs::exists(dir.path() / ("samples." + std::to_string(number) + ".jsonl")));
    CHECK(fs::exists(dir.path() / ("tensorboard." + std::to_string(number)) / "events"));
    CHECK_FALSE(fs::exists(dir.path() / "tensorboard"));
  }
}
