// Training run on this rank, which every algorithm's loop goes through: the policy in training, the
// run directory with metrics and checkpoints, the counters that a resumed run restores, and the end
// of steps and of the run. The loops (train_rl, train_sft) have it; their parts take what they use.
// All ranks call the collective methods in the same order.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/value_model.h"
#include "rl/config/config.h"
#include "rl/report/start_record.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/policy_training.h"
#include "rl/trainer/run_checkpoints.h"
#include "rl/trainer/run_directory.h"
#include "rl/trainer/run_ranks.h"
#include "rl/trainer/step_report.h"
#include "rl/trainer/training_failed.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

struct RunOptions {
  Config config;
  std::filesystem::path run_dir;
  int64_t steps = 0;  // total number of steps, including those before a resume
  // Returns the signal that asked this process to stop, or 0. Empty: no signal is observed.
  std::function<int()> stop_signal{};
  // Called by the thread that saves checkpoints before it writes this rank's part; may be empty.
  std::function<void(int64_t step)> before_checkpoint{};
  // Versions of the program and the like, for RUN_DIR/starts.jsonl.
  Facts facts{};
};

// A policy that the run trains.
struct RunPolicy {
  std::string name;      // of its adapter, one of lora.adapters; "" = the only policy
  TrainingState& state;  // the run's, or the adapter's own
  PolicyTraining training;
};

class TrainingRun {
 public:
  // Loads the newest checkpoint of the run directory that is whole, or else the starting model.
  // Rank 0 acquires the directory's lock and holds it for the lifetime of this object. A damaged
  // checkpoint gets another name (set_aside()) and a warning.
  // Collective over: the world.
  // Blocks: until every rank has loaded.
  // Throws, on the rank that failed (others: RankFailed): std::runtime_error when the only
  // checkpoint is damaged, when the model cannot be loaded or weights are not finite; what
  // RunDirectoryLock throws.
  TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::ProcessGroups comms);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  const Config& config() const { return options_.config; }
  const std::filesystem::path& run_dir() const { return options_.run_dir; }
  int64_t steps() const { return options_.steps; }
  const RunRanks& ranks() const { return ranks_; }

  // True when all steps are done or the ranks have agreed to stop. The same on every rank.
  bool is_over() const { return state_.step >= steps() || stop_signal_ != 0; }
  // The signal that this rank's process has received, or 0.
  int signal_here() const { return options_.stop_signal ? options_.stop_signal() : 0; }
  // The signal that the ranks have agreed to stop for before the last step, or 0.
  int stop_signal() const { return state_.step < steps() ? stop_signal_ : 0; }
  // Call on every rank with the same signal.
  void agree_to_stop(int signal) { stop_signal_ = signal; }
  // The only policy, or the first.
  PolicyTraining& policy() { return policies_.front().training; }
  // All of them: one, or one for each of lora.adapters, in their order.
  std::vector<RunPolicy>& policies() { return policies_; }
  // Saved in checkpoints. finish_step() counts the steps, PolicyTraining the optimizer steps.
  TrainingState& state() { return state_; }
  const TrainingState& state() const { return state_; }

  // Makes a model part of the run's checkpoints. In a run that has resumed it is loaded from the
  // checkpoint, which must hold it. The model must outlive the run's last step. Not collective.
  // Throws: std::runtime_error naming checkpoint and tensor when that does not fit.
  void add_checkpointed_model(const std::string& name, engine::ModelRunner& model) {
    checkpoints_.add_model(name, model);
  }
  // Adds the directory `name` to RUN_DIR/checkpoint-final (value_model_files()). Call it before
  // finish(), on every rank in the same order. The model must outlive finish().
  void add_final_model(const std::string& name, const engine::ValueModel& model) {
    final_models_.emplace_back(name, &model);
  }

  // Ends the run within a step: waits for the checkpoint that is being saved.
  // Collective over: the world.
  // Throws: TrainingFailed with the current step, the text of `error` and the last checkpoint.
  [[noreturn]] void diverged(const engine::Diverged& error);

  // Ends the run between two steps: saves a checkpoint of the last step if there is none.
  // Collective over: the world.
  // Blocks: until the disk has it.
  // Throws: TrainingFailed with the step, `reason` and the checkpoint; as BackgroundSave.
  [[noreturn]] void fail(const std::string& reason);

  // The report of finished steps. Rank 0 only.
  StepReport& report() { return *report_; }

  // Ends a step: increments the counters, writes the step's line of metrics (rank 0), shows
  // progress, and starts to save a checkpoint if one is due. Returns the step of a checkpoint that
  // has become complete since the last call. The ranks agree here on a stop that any of them was
  // asked for. `metrics` must hold "num_tokens", and "reward" if there is one; best_metric()
  // decides on the best checkpoint.
  // Collective over: the world.
  // Blocks: until the state is copied to host memory if a checkpoint is due, and until the one
  // before is complete.
  // Throws: on rank 0 as StepReport::write; as BackgroundSave.
  std::optional<int64_t> finish_step(Metrics metrics, const std::vector<UpdateResult>& updates);

  // Saves a checkpoint of the last step if there is none and waits for it. Unless the run was
  // stopped, then writes RUN_DIR/checkpoint-final (rank 0).
  // Collective over: the world.
  // Blocks: until the disk has them.
  // Throws: as BackgroundSave and run_rank_work().
  void finish();

 private:
  void load();
  void load_policies(bool resumed);
  void check_finite();
  void write_final() const;
  void write_final_adapters(const std::filesystem::path& dir) const;

  RunOptions options_;
  RunRanks ranks_;
  std::optional<RunDirectoryLock> lock_;  // rank 0's
  TrainingState state_;
  std::vector<RunPolicy> policies_;
  RunCheckpoints checkpoints_;
  std::optional<StepReport> report_;  // rank 0's
  std::vector<std::pair<std::string, const engine::ValueModel*>> final_models_;
  std::optional<EvaluationResult> evaluation_;  // of the last step, if there was one
  int stop_signal_ = 0;
};

}  // namespace ringside::rl
