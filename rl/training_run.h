// What every training algorithm shares: the model and its optimizer on this rank, the run directory with metrics and
// checkpoints, and the counters that a resumed run takes up. Collective methods are called by all ranks in step.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rl/checkpoint.h"
#include "rl/config/config.h"
#include "rl/metrics/metrics_writer.h"
#include "rl/policy_update.h"
#include "rl/metrics/tensorboard_writer.h"
#include "rl/progress/progress.h"
#include "sp/comm/mesh.h"

namespace ringside::rl {

struct RunOptions {
  Config config;
  std::filesystem::path run_dir;
  int64_t steps = 0;  // stop after this many steps in all
};

at::ScalarType scalar_type(DType dtype);

// The shape of the model at config.model.path, with what the configuration adds to it.
engine::ModelConfig load_model_config(const Config& config, const std::string& path);

// The starting weights that config.model describes, read from disk or drawn from config.seed.
std::unique_ptr<engine::Decoder> load_starting_model(const Config& config, const std::string& path);

class TrainingRun {
 public:
  // Loads the newest checkpoint of the run directory, or else the starting model. Not collective. Throws
  // std::runtime_error when neither can be loaded.
  TrainingRun(RunOptions options, const sp::Mesh& mesh, sp::MeshCommunicators comms);

  const Config& config() const { return options_.config; }
  const std::filesystem::path& run_dir() const { return options_.run_dir; }
  int64_t steps() const { return options_.steps; }
  const sp::Mesh& mesh() const { return mesh_; }
  const sp::MeshCommunicators& comms() const { return comms_; }
  bool is_main_rank() const { return mesh_.rank() == 0; }
  engine::Decoder& decoder() { return *decoder_; }
  const TrainingState& state() const { return state_; }
  // The coefficients that a run adapts; they travel in its checkpoints.
  TrainingState& adaptive_state() { return state_; }

  // The folder of the checkpoint that this run went on from, where parts added by add_checkpoint_part lie; nothing for a
  // run from the start.
  const std::optional<std::filesystem::path>& resumed_parts() const { return resumed_parts_; }
  void add_checkpoint_part(CheckpointPart part) { checkpoint_parts_.push_back(std::move(part)); }

  // The learning rate of the next optimizer step over its peak: warm-up and decay alone.
  double learning_rate_factor() const;

  // This rank's shards of one optimizer step's documents. Collective: the plan's hash is compared first.
  std::vector<sp::Shard> collate(const std::vector<sp::Document>& documents) const;

  // One optimizer step. Collective.
  UpdateResult update(const std::vector<sp::Shard>& shards, const LossFunction& loss);

  // Counts the step, writes its line of metrics, shows progress, and saves a checkpoint when one is due; returns whether
  // it did. Only rank 0 writes. `metrics` holds "num_tokens", and "reward" where there is one.
  bool finish_step(Metrics metrics, const std::vector<UpdateResult>& updates);

  // The next log line stands on its own: removes a progress bar that is drawn.
  void clear_progress();

  // Writes RUN_DIR/checkpoint-final. Only rank 0 writes.
  void finish();

 private:
  void resume_or_start();
  void open_writers();
  void show_progress(const Metrics& metrics, double step_time);
  void save(const std::filesystem::path& dir) const;

  RunOptions options_;
  sp::Mesh mesh_;
  sp::MeshCommunicators comms_;
  std::unique_ptr<engine::Decoder> decoder_;
  std::unique_ptr<engine::AdamW> optimizer_;
  TrainingState state_;
  std::optional<std::filesystem::path> resumed_parts_;
  std::vector<CheckpointPart> checkpoint_parts_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  std::unique_ptr<Progress> progress_;
  std::chrono::steady_clock::time_point step_begin_;
};

}  // namespace ringside::rl
