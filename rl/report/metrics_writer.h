// metrics.jsonl: one JSON object a line, made to be read while the run goes on and joined after a
// resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "rl/report/metrics.h"

namespace ringside::rl {

// The highest step of the file's complete lines; 0 when it has none or is not there. Throws
// std::runtime_error as MetricsWriter does.
std::int64_t last_metrics_step(const std::filesystem::path& path);

// A line is {"step": 3, "reward": 0.25, ...}: the step first, then the metrics in their order.
// Doubles are written so that they read back to the same value. JSON has no NaN and no infinities:
// such a metric is null, and a last field "non_finite" maps its name to "nan", "inf" or "-inf". Not
// thread-safe.
class MetricsWriter {
 public:
  // Appends to `path`, made when absent. Lines of a step beyond `resumed_step`, and a last line
  // that a killed process left unfinished, are removed first, by writing a new file and renaming it
  // over the old one; pass -1 to start a run anew, and the checkpoint's step to resume one. Throws
  // std::runtime_error when the file cannot be read or written, or a complete line before the last
  // is not an object with an integer "step".
  MetricsWriter(std::filesystem::path path, std::int64_t resumed_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Writes one line in a single write(2), so that a reader sees whole lines. `updates`: the numbers
  // of each optimizer step of the step, written as a last field "updates", a list of objects.
  // Throws std::invalid_argument for a name that is empty, "step", "updates", "non_finite" or given
  // twice, std::runtime_error when the disk is full.
  void write(std::int64_t step, const Metrics& metrics, const std::vector<Metrics>& updates = {});

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace ringside::rl
