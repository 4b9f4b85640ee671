// Checkpoints: a Hugging Face directory that any tool loads, plus trainer/ with what it takes to go
// on: optimizer state, master weights where the directory holds a lower precision, and counters.
// Nothing in it depends on the layout of ranks, so a run goes on at any sequence-parallel size.
// Written under another name and renamed when complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"

namespace ringside::rl {

// The counters of a run. Random numbers need no state: sampling and data order are functions of
// (seed, group, sample).
struct TrainingState {
  int64_t step = 0;  // finished steps; also the data cursor: step s consumes the s-th batch
  int64_t optimizer_step = 0;  // finished optimizer steps, for the schedule
  int64_t weight_version = 0;  // version of the weights in the checkpoint
  int64_t seed = 0;
  std::string run_id;         // names the run on the wire and in journals
  double kl_coef = 0.0;       // present value of an adaptive coefficient
  double entropy_coef = 0.0;  // present value of an adaptive bonus
  double entropy =
      0.0;  // of the policy at the last optimizer step, which decides whether that bonus acts
};

// What else belongs into a checkpoint's trainer/ folder: called with that folder while the
// checkpoint is being written.
using CheckpointPart = std::function<void(const std::filesystem::path& trainer_dir)>;

// Writes the directory and its trainer/ folder. `tokenizer_from`: directory whose tokenizer files
// are copied along, may be empty. Call on one rank. Throws std::runtime_error on a write failure;
// an older directory of that name then stays.
void save_checkpoint(const std::filesystem::path& dir, const engine::ModelRunner& policy,
                     const TrainingState& state, const std::filesystem::path& tokenizer_from,
                     const std::vector<CheckpointPart>& parts = {});

// Fills the policy's weights and optimizer. Throws std::runtime_error naming file and tensor when
// the checkpoint does not fit them.
TrainingState load_checkpoint(const std::filesystem::path& dir, engine::ModelRunner& policy);

// RUN_DIR/checkpoints/step-NNNNNN
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, int64_t step);

// The complete checkpoint of the most steps under RUN_DIR (checkpoint-final included), if there is
// one.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run_dir);

// Steps that a complete checkpoint holds. Throws std::runtime_error when it is none.
int64_t checkpoint_step(const std::filesystem::path& dir);

// Removes all but the newest `keep` (0: none) of RUN_DIR/checkpoints.
void prune_checkpoints(const std::filesystem::path& run_dir, int64_t keep);

}  // namespace ringside::rl
