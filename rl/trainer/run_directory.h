// A run directory between two starts: who is at work in it, with which configuration, and what
// earlier tries left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// Held by trainer rank 0 while it works in the directory: an advisory lock on RUN_DIR/trainer.pid,
// which the kernel releases with the process.
class RunDirectoryLock {
 public:
  // Makes the directory where it is missing. Throws std::runtime_error naming the holder's pid when
  // another trainer has the lock, std::system_error when the file cannot be opened or locked.
  explicit RunDirectoryLock(const std::filesystem::path& run_dir);
  ~RunDirectoryLock();
  RunDirectoryLock(const RunDirectoryLock&) = delete;
  RunDirectoryLock& operator=(const RunDirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

enum class StartKind {
  kTrain,     // from the newest checkpoint or from the start
  kFinished,  // nothing is left to do
  kRefused,   // the directory belongs to a run with another configuration
};

struct StartPlan {
  StartKind kind = StartKind::kTrain;
  std::vector<std::string> lines;  // for the user, a sentence each
  bool drop_journal = false;       // rollouts were sampled with another configuration
};

// What starting `config` for `steps` steps in run_dir means: RUN_DIR/config.yaml is compared with
// it key by key. Keys that only say how the same training is run (layout, addresses, logging,
// checkpoints, the number of steps) may change; any other changed key is refused where the
// directory holds a trained step, unless `accept_changes`. Only reads. Throws std::runtime_error on
// unreadable files.
StartPlan plan_start(const std::filesystem::path& run_dir, const Config& config, int64_t steps,
                     bool accept_changes);

// Carries the plan out: RUN_DIR/config.yaml becomes `config`, in one step, and the journal goes
// where the plan says so. Call on rank 0, under the lock. Throws std::runtime_error or
// std::system_error.
void begin_start(const std::filesystem::path& run_dir, const Config& config, const StartPlan& plan);

// Metrics of a try that left no checkpoint.
struct EarlierTry {
  int64_t steps = 0;
  std::filesystem::path kept;  // where its metrics are now
};

// For a start from step 0: renames RUN_DIR/metrics.jsonl that holds steps to metrics.1.jsonl, or
// the next number that is free. Nothing when there are none.
std::optional<EarlierTry> set_earlier_try_aside(const std::filesystem::path& run_dir);

}  // namespace ringside::rl
