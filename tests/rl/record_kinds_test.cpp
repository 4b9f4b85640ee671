// Several teachers in the training loop: documents have the kinds of their records, so that
// each completion learns from the teacher of its source. Oracle: runs with one teacher alone.
#include <ATen/ATen.h>

#include <fstream>

#include "tests/rl/small_runs.h"

namespace ringside::test {
namespace {

// A copy of recorded rollouts whose groups are of these sources in turn.
std::filesystem::path with_sources(const std::filesystem::path& rollouts,
                                   const std::vector<std::string>& sources,
                                   const std::filesystem::path& copy) {
  constexpr std::size_t kGroupSize = 4;
  std::ifstream file(rollouts);
  std::string lines;
  std::size_t number = 0;
  for (std::string text; std::getline(file, text); ++number) {
    auto line = nlohmann::json::parse(text);
    line["source"] = sources[number / kGroupSize % sources.size()];
    lines += line.dump() + "\n";
  }
  write_file(copy, lines);
  return copy;
}

TEST_CASE("the training loop takes each completion to the teacher of its source", "[kinds]") {
  const SmallModel model;
  const TemporaryDirectory run_dir;
  live_run(model.config({"train.steps=1", "log.rollouts=true"}), run_dir.path());
  const auto recorded = run_dir.path() / "rollouts.jsonl";
  const auto run = [&](const std::vector<std::string>& sources, const std::string& teachers) {
    const std::string key = sources.empty() ? "teacher" : "teachers";
    const auto file = sources.empty()
                          ? recorded
                          : with_sources(recorded, sources, run_dir.path() / "sources.jsonl");
    Words words{"train.steps=1", "model.dtype=float64",
                "algorithm.distillation." + key + "=" + teachers};
    if (!sources.empty()) {
      words.push_back("data.source_key=source");
    }
    return recorded_run(model.config(words), file);
  };
  const std::string first = model.path("model"), second = model.path("reference");
  const std::string both = "math=" + first + ", code=" + second;
  const RecordedRun of_first = run({}, first), of_second = run({}, second);
  CHECK(difference(of_first, of_second) > 1e-6);
  CHECK(difference(run({"math"}, both), of_first) == 0.0);
  CHECK(difference(run({"code"}, both), of_second) == 0.0);
  const RecordedRun mixed = run({"math", "code"}, both);
  CHECK(difference(mixed, of_first) > 1e-6);
  CHECK(difference(mixed, of_second) > 1e-6);
}

}  // namespace
}  // namespace ringside::test
