// Reader of metrics.jsonl, whole or while a run writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/report/metrics.h"

namespace ringside::rl {

struct MetricsLine {
  int64_t step = 0;  // 0: the evaluation before training
  Metrics metrics;   // without "updates"; not finite where "non_finite" says so
};

// The lines of one file, in file order. A line that is still being written is read when it is
// complete.
// Thread safety: none.
class MetricsFollower {
 public:
  // The file need not exist yet.
  explicit MetricsFollower(std::filesystem::path path) : path_(std::move(path)) {}

  // Reads what was added since the last call; returns whether there was anything new. Starts again
  // from the beginning if the file was replaced, as a resumed run does. An absent file has no
  // lines.
  // Throws: std::runtime_error naming file and line when a complete line is not an object with an
  // integer "step" and numbers.
  bool poll();

  const std::vector<MetricsLine>& lines() const { return lines_; }

 private:
  std::filesystem::path path_;
  std::uint64_t inode_ = 0;
  std::uint64_t offset_ = 0;  // of the first unread byte
  std::vector<MetricsLine> lines_;
};

// All complete lines of the file; none if it is absent.
// Throws: as MetricsFollower::poll().
std::vector<MetricsLine> read_metrics(const std::filesystem::path& path);

}  // namespace ringside::rl
