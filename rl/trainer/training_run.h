// What every training algorithm shares: the model and its optimizer on this rank, the run directory
// with metrics and checkpoints, and the counters that a resumed run takes up. Collective methods
// are called by all ranks in step.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/report/metrics_writer.h"
#include "rl/report/progress.h"
#include "rl/report/tensorboard_writer.h"
#include "rl/setup/model_setup.h"
#include "rl/step/column_tensors.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/checkpoint.h"
#include "rl/trainer/run_directory.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

struct RunOptions {
  Config config;
  std::filesystem::path run_dir;
  int64_t steps = 0;  // stop after this many steps in all
  // The signal that has asked this process to stop, 0 for none. Empty: none ever does.
  std::function<int()> stop_signal;
};

// Training cannot go on, for a reason that every rank has found alike.
class TrainingFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TrainingRun {
 public:
  // Loads the newest checkpoint of the run directory, or else the starting model; rank 0 holds the
  // directory's lock from here on. Not collective. Throws std::runtime_error when neither can be
  // loaded or weights are not finite, and what RunDirectoryLock throws.
  TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::ProcessGroups comms);

  const Config& config() const { return options_.config; }
  const std::filesystem::path& run_dir() const { return options_.run_dir; }
  int64_t steps() const { return options_.steps; }
  const sp::Mesh& mesh() const { return mesh_; }
  const sp::ProcessGroups& comms() const { return comms_; }
  bool is_main_rank() const { return mesh_.rank() == 0; }
  // run_rank_work() over the run's world: `work` on every rank, or on rank 0 alone. Collective.
  void on_every_rank(const std::function<void()>& work) const;
  void on_main_rank(const std::function<void()>& work) const;

  // All steps are done, or the ranks have agreed to stop. The same on every rank.
  bool is_over() const { return state_.step >= steps() || stop_signal_ != 0; }
  // The signal that this rank's process has got, or 0.
  int signal_here() const { return options_.stop_signal ? options_.stop_signal() : 0; }
  // The signal that the ranks have agreed to stop for, or 0: before the run would be over by
  // itself.
  int stop_signal() const { return state_.step < steps() ? stop_signal_ : 0; }
  // To be called on every rank with the same signal.
  void agree_to_stop(int signal) { stop_signal_ = signal; }
  engine::ModelRunner& policy() { return *policy_; }
  const engine::ModelRunner& policy() const { return *policy_; }
  const engine::Decoder& decoder() const { return policy_->decoder(); }
  const TrainingState& state() const { return state_; }
  // The coefficients that a run adapts; they travel in its checkpoints.
  TrainingState& adaptive_state() { return state_; }

  // The folder of the checkpoint that this run went on from, where parts added by
  // add_checkpoint_part lie; nothing for a run from the start.
  const std::optional<std::filesystem::path>& resumed_parts() const { return resumed_parts_; }
  void add_checkpoint_part(CheckpointPart part) { checkpoint_parts_.push_back(std::move(part)); }

  // The learning rate of the next optimizer step over its peak: warm-up and decay alone.
  double learning_rate_factor() const;

  // This rank's micro-batches of one optimizer step's documents. Collective: the plan's hash is
  // compared first.
  std::vector<sp::MicroBatch> collate(const std::vector<sp::Document>& documents) const;

  // One optimizer step of the policy. Collective. Throws what diverged() throws.
  UpdateResult update(const LocalBatch& mini_batch, const StepColumns& columns,
                      const LossFunction& loss);

  // Throws TrainingFailed: names the step that is being trained, what the error says and the
  // checkpoint that is left.
  [[noreturn]] void diverged(const engine::Diverged& error) const;

  // Rank 0: an evaluation before the first step.
  void show_first_evaluation(double reward);

  // Counts the step, writes its line of metrics, shows progress, and saves a checkpoint when one is
  // due; returns whether it did. Here the ranks agree on a stop that one of them was asked for.
  // Only rank 0 writes; `metrics` holds "num_tokens", and "reward" where there is one. Collective.
  bool finish_step(Metrics metrics, const std::vector<UpdateResult>& updates);

  // Writes RUN_DIR/checkpoint-final, or after a stop a checkpoint of the last step where there is
  // none yet. Only rank 0 writes. Collective.
  void finish();

 private:
  void resume_or_start();
  void open_writers();
  void write_step(Metrics metrics, const std::vector<UpdateResult>& updates);
  void show_progress(const Metrics& metrics, double step_time);
  bool agree_on_step_end();
  void save(const std::filesystem::path& dir);
  void save_step();

  RunOptions options_;
  sp::Mesh mesh_;
  sp::ProcessGroups comms_;
  std::optional<RunDirectoryLock> lock_;  // rank 0's
  std::unique_ptr<engine::ModelRunner> policy_;
  TrainingState state_;
  std::optional<std::filesystem::path> resumed_parts_;
  std::vector<CheckpointPart> checkpoint_parts_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  std::unique_ptr<Progress> progress_;
  std::chrono::steady_clock::time_point step_begin_;
  int stop_signal_ = 0;
  std::filesystem::path saved_;  // the newest checkpoint; empty: there is none
  int64_t saved_step_ = 0;
  std::chrono::steady_clock::time_point saved_at_;  // rank 0's clock decides
  std::optional<double> eval_reward_;               // the last one
};

}  // namespace ringside::rl
