// Writer of metrics.jsonl: one JSON object per line. The file can be read during the run, and a
// resumed run continues it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "rl/report/metrics.h"

namespace ringside::rl {

// The highest step of the file's complete lines; 0 when it has none or does not exist.
// Throws: std::runtime_error as MetricsWriter does.
int64_t last_metrics_step(const std::filesystem::path& path);

// A line is {"step": 3, "reward": 0.25, ...}: the step first, then the metrics in their order.
// Doubles are written so that they read back to the same value. JSON has no NaN and no infinities:
// such a metric is null, and a last field "non_finite" maps its name to "nan", "inf" or "-inf".
// Thread safety: none.
class MetricsWriter {
 public:
  // Appends to `path`; creates it if absent. First removes the lines of steps beyond `resumed_step`
  // and an incomplete last line of a killed process, by writing a new file and renaming it over the
  // old one. resumed_step: the checkpoint's step, or -1 for a new run.
  // Throws: std::runtime_error when the file cannot be read or written, or when a complete line
  // before the last is not an object with an integer "step".
  MetricsWriter(std::filesystem::path path, int64_t resumed_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Writes one line with a single write(2), so that a reader sees whole lines. `updates`: the
  // metrics of each optimizer step of the step, written as a last field "updates", a list of
  // objects.
  // Throws: std::invalid_argument for a name that is empty, "step", "updates", "non_finite" or a
  // duplicate; std::runtime_error when the disk is full.
  void write(int64_t step, const Metrics& metrics, const std::vector<Metrics>& updates = {});

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace ringside::rl
