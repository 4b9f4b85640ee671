// Run directory at a start: its lock, the comparison with the configuration of earlier starts, and
// metrics that earlier attempts left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/trainer/source_fingerprints.h"

namespace ringside::rl {

// Advisory lock on RUN_DIR/trainer.pid. Trainer rank 0 holds it while it uses the directory; the
// kernel releases it when the process ends.
class RunDirectoryLock {
 public:
  // Creates the directory if it is missing.
  // Throws: std::runtime_error naming the holder's pid when another trainer has the lock;
  // std::system_error when the file cannot be opened or locked.
  explicit RunDirectoryLock(const std::filesystem::path& run_dir);
  ~RunDirectoryLock();
  RunDirectoryLock(const RunDirectoryLock&) = delete;
  RunDirectoryLock& operator=(const RunDirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

// Whether the process that RUN_DIR/trainer.pid names is alive on this machine. Takes no lock, so it
// never disturbs a trainer that starts.
bool trainer_at_work(const std::filesystem::path& run_dir);

enum class StartKind {
  kTrain,     // trains from the newest checkpoint or from step 0
  kFinished,  // all steps are done
  kRefused,   // the directory belongs to a run with another configuration
};

struct StartPlan {
  StartKind kind = StartKind::kTrain;
  std::vector<std::string> lines;  // messages for the user, one sentence each
  bool drop_journal = false;       // its rollouts were sampled with another configuration
};

// Decides how to start `config` for `steps` steps in run_dir. Compares it with RUN_DIR/config.yaml
// key by key. Keys that do not change the training itself may differ (layout, addresses, logging,
// checkpoints, number of steps). Any other changed key is refused if the directory holds a trained
// step, unless `accept_changes`. So are files whose contents have changed under the same path
// (`sources` against RUN_DIR/sources.json; a key that either lacks is not compared), and a
// checkpoint without config.yaml. Writes nothing.
// Throws: std::runtime_error on unreadable files.
StartPlan plan_start(const std::filesystem::path& run_dir, const Config& config, int64_t steps,
                     bool accept_changes, const SourceFingerprints& sources = {});

// Executes the plan: replaces RUN_DIR/config.yaml by `config` and RUN_DIR/sources.json by
// `sources`, each atomically, and removes the journal if plan.drop_journal. Call on rank 0, under
// the lock.
// Throws: std::runtime_error or std::system_error.
void begin_start(const std::filesystem::path& run_dir, const Config& config, const StartPlan& plan,
                 const SourceFingerprints& sources = {});

// Metrics of an earlier attempt that left no checkpoint.
struct EarlierTry {
  int64_t steps = 0;
  std::filesystem::path kept;  // new path of its metrics
};

// For a start from step 0: renames a RUN_DIR/metrics.jsonl that holds steps to metrics.1.jsonl, or
// to the next free number, and with it samples.jsonl and tensorboard/. Returns nullopt when there
// is no such file. Throws: as last_metrics_step(); std::system_error when it cannot be renamed.
std::optional<EarlierTry> set_earlier_try_aside(const std::filesystem::path& run_dir);

}  // namespace ringside::rl
