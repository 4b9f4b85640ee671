// State of a run as its directory shows it: still training, finished, stopped or failed; steps
// done and planned; since when. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/report/metrics_reader.h"

namespace ringside::rl {

// kLost: the newest start left no end, and no trainer works: it was killed, or the machine went
// down. kUnknown: the directory does not record starts.
enum class RunStatus { kUnknown, kTraining, kFinished, kStopped, kFailed, kLost };

struct RunState {
  RunStatus status = RunStatus::kUnknown;
  std::string reason;           // of kStopped the signal, of kFailed the error
  int64_t steps = 0;            // done
  int64_t planned = 0;          // in all; 0: not known
  int64_t starts = 0;           // of the trainer in this directory
  std::string first_start;      // UTC, "2026-01-31T12:00:00Z"; of the first start
  std::string newest_start;     // of the newest one
  std::string end;              // of the newest start; empty if it left none
  double training_seconds = 0;  // sum of the steps' times
};

// Reads starts.jsonl and ends.jsonl of the directory; either may be missing. A line that is not of
// their form is ignored.
// trainer_at_work: whether a trainer works in the directory now.
RunState read_run_state(const std::filesystem::path& run_dir, const std::vector<MetricsLine>& lines,
                        bool trainer_at_work);

// E.g. "failed after 32 of 400 steps: disk full", for a status that is known; else the steps alone.
std::string describe_status(const RunState& state);
// E.g. "started 2026-01-31 12:00 UTC, ended 12:30 UTC; 0:28:11 of training in 2 starts"; empty if
// nothing is known.
std::string describe_times(const RunState& state);

}  // namespace ringside::rl
