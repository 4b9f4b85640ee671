// Checkpoints: a Hugging Face directory that any tool loads, plus a folder trainer/ with the state
// to resume from: optimizer state, master weights where the directory holds a lower precision, and
// counters. With adapters the model's files hold the merged weights, and a folder adapter/ beside
// them the adapters in PEFT's format, from which a run resumes. The format does not depend on the
// layout of ranks: a run can resume at any sequence-parallel size. A checkpoint is written under
// another name and renamed when complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"

namespace ringside::rl {

// Counters of a run. Random numbers need no state: sampling and data order are functions of (seed,
// group, sample).
struct TrainingState {
  int64_t step = 0;  // finished steps; also the data cursor: step s consumes the s-th batch
  int64_t optimizer_step = 0;  // finished optimizer steps, for the schedule
  int64_t weight_version = 0;  // version of the weights in the checkpoint
  int64_t seed = 0;
  std::string run_id;         // names the run on the wire and in journals
  double kl_coef = 0.0;       // current value of the adaptive KL coefficient
  double entropy_coef = 0.0;  // current value of the adaptive entropy bonus
  // Entropy of the policy at the last optimizer step: decides whether the bonus is active.
  double entropy = 0.0;
};

// An additional part of a checkpoint's trainer/ folder. Called with that folder while the
// checkpoint is being written.
using CheckpointPart = std::function<void(const std::filesystem::path& trainer_dir)>;

// Writes the directory and its trainer/ folder. Call on one rank.
// `tokenizer_from`: directory whose tokenizer files are copied into the checkpoint, and which
// adapters name as their base model; may be empty.
// Blocks: on the disk.
// Throws: std::runtime_error on a write failure; an older directory of the same name is then left
// unchanged.
void save_checkpoint(const std::filesystem::path& dir, const engine::ModelRunner& policy,
                     const TrainingState& state, const std::filesystem::path& tokenizer_from,
                     const std::vector<CheckpointPart>& parts = {});

// Loads the policy's weights and optimizer state.
// Throws: std::runtime_error naming file and tensor when the checkpoint does not fit the policy.
TrainingState load_checkpoint(const std::filesystem::path& dir, engine::ModelRunner& policy);

// RUN_DIR/checkpoints/step-NNNNNN
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, int64_t step);

// The complete checkpoint with the most steps under RUN_DIR, checkpoint-final included; nullopt
// when there is none.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run_dir);

// Finished steps of a complete checkpoint.
// Throws: std::runtime_error when `dir` is no complete checkpoint.
int64_t checkpoint_step(const std::filesystem::path& dir);

// Removes all but the newest `keep` checkpoints of RUN_DIR/checkpoints. 0: removes none.
void prune_checkpoints(const std::filesystem::path& run_dir, int64_t keep);

}  // namespace ringside::rl
