// Checkpoints of one run: the newest, when the next is due, and the models that they hold. Saving
// runs in the background of training (BackgroundSave).
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/trainer/background_save.h"
#include "rl/trainer/checkpoint.h"
#include "sp/mesh/mesh.h"

namespace ringside::rl {

// Sets the newest checkpoint of the run directory aside (set_aside()) while it is damaged, with a
// warning. The ranks share the reading. round: as of run_rank_work.
// Collective over: `world`.
// Blocks: until the newest checkpoint is read from the disk.
// Throws: as set_aside(), on rank 0 (others: RankFailed).
void set_damaged_aside(const std::filesystem::path& run_dir, sp::Communicator& world,
                       std::chrono::milliseconds round);

// A rank's vote at the end of a step. Clocks, disks and signals differ between ranks, but all ranks
// must act alike: they act on the maximum of each field over the ranks.
struct StepEndVote {
  int64_t save = 0;               // 1: a checkpoint is due
  BackgroundSave::Status status;  // of the save in progress
  int64_t tag = 0;                // rank 0's, for the next save
  int64_t signal = 0;             // that asked this rank's process to stop, or 0

  // Collective over: the world.
  StepEndVote max_over(sp::Communicator& world) const;
};

class RunCheckpoints {
 public:
  struct Options {
    CheckpointConfig config;
    std::string best_metric;  // that of the evaluations that it is given
    std::filesystem::path run_dir;
    // Directory whose tokenizer files checkpoints copy; may be empty.
    std::filesystem::path tokenizer_from;
    std::chrono::milliseconds round{5000};  // as of run_rank_work
    // As of BackgroundSave.
    std::function<void(int64_t step)> before_writing;
  };

  // Reads nothing yet. world: of all ranks.
  RunCheckpoints(Options options, const sp::Mesh& mesh, std::shared_ptr<sp::Communicator> world);

  // Finds the newest checkpoint, whose hashes the caller has checked (damage_of()); nullopt when
  // there is none. Not collective.
  // Throws: as CheckpointReader.
  std::optional<TrainingState> resume();
  // Makes the model part of the checkpoints, as `name`, and loads it from the one that was resumed.
  // Not collective. The policy is the model "policy".
  // Throws: as CheckpointReader::fill.
  void add_model(const std::string& name, engine::ModelRunner& model);

  // This rank's vote at the end of `step`, without the signal. Not collective.
  StepEndVote vote(int64_t step, const std::optional<EvaluationResult>& evaluation);
  // Acts on the maximum of the votes: saves if that is due. Returns the step of a checkpoint that
  // has become complete.
  // Collective over: the world.
  // Blocks: until this rank's state is in host memory, and until an earlier save is complete.
  // Throws: as BackgroundSave.
  std::optional<int64_t> step_end(const StepEndVote& of_all, const TrainingState& state,
                                  const std::optional<EvaluationResult>& evaluation);
  // Waits for the save in progress. If the newest checkpoint is older than the state, saves that
  // too; `evaluation` is that of the state's step.
  // Collective over: the world.
  // Blocks: until the disk has them.
  // Throws: as BackgroundSave.
  void finish(const TrainingState& state, const std::optional<EvaluationResult>& evaluation);
  // Waits for the save in progress, if there is one.
  // Collective over: the world.
  // Throws: as BackgroundSave.
  void wait_for_save();

  // Empty: there is none yet.
  const std::filesystem::path& newest() const { return newest_; }
  void start_clock() { newest_at_ = std::chrono::steady_clock::now(); }
  const BackgroundSave::Figures& figures() const { return save_.figures(); }

 private:
  struct Model {
    std::string name;
    engine::ModelRunner* runner;
  };
  bool is_due(int64_t step, const std::optional<EvaluationResult>& evaluation);
  void start(const TrainingState& state, const std::optional<EvaluationResult>& evaluation,
             int64_t tag);
  void set_newest();

  Options options_;
  sp::Mesh mesh_;
  std::vector<Model> models_;
  std::optional<std::filesystem::path> resumed_;
  std::filesystem::path newest_;
  int64_t newest_step_ = 0;
  std::filesystem::path saving_;  // in progress
  int64_t saving_step_ = 0;
  std::chrono::steady_clock::time_point newest_at_;
  double best_score_ = -std::numeric_limits<double>::infinity();  // rank 0's
  BackgroundSave save_;
};

}  // namespace ringside::rl
