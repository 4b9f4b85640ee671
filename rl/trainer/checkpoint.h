// Checkpoints in a run directory: where they are, which is the newest and which is the best.
//
// RUN_DIR/checkpoints/step-NNNNNN hold what a run resumes from (rl/checkpoint).
// RUN_DIR/checkpoint-final is a Hugging Face directory for other programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "rl/checkpoint/manifest.h"

namespace ringside::rl {

// RUN_DIR/checkpoints/step-NNNNNN, with more digits where a step has more.
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, int64_t step);

// The complete checkpoint with the most steps under RUN_DIR/checkpoints; nullopt when there is
// none. Those that set_aside() renamed do not count.
// Throws: std::runtime_error naming the manifest of any of them that is not of its form.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& run_dir);

// What is wrong with a checkpoint: a part that is missing, truncated or of another hash. "" if it
// is whole, as far as this reader's share of the hashes says (CheckpointReader::verify). Blocks:
// until the share is read from the disk.
std::string damage_of(const std::filesystem::path& dir, int64_t reader, int64_t readers);

struct SetAside {
  std::filesystem::path moved_to;  // the new name of the damaged checkpoint
  std::filesystem::path next;      // the newest checkpoint that is left
};
// Renames a damaged checkpoint DIR to DIR.damaged, or DIR.damaged-2 and so on. Call under the
// directory's lock.
// Throws: std::runtime_error that names `damage` and what to do, when no other checkpoint is left:
// then nothing is renamed. std::system_error when it cannot be renamed.
SetAside set_aside(const std::filesystem::path& dir, const std::string& damage);

// Finished steps of a complete checkpoint.
// Throws: std::runtime_error when `dir` is no complete checkpoint.
int64_t checkpoint_step(const std::filesystem::path& dir);

// A checkpoint with its evaluation.
struct BestCheckpoint {
  std::filesystem::path dir;
  EvaluationResult evaluation;
};
// The complete checkpoint with the best evaluation by `metric`, the earliest of equals; nullopt
// when none has one.
// Throws: as latest_checkpoint().
std::optional<BestCheckpoint> best_checkpoint(const std::filesystem::path& run_dir,
                                              const std::string& metric);

// Removes all but the newest `keep` checkpoints of RUN_DIR/checkpoints (0: removes none) and the
// best by `best_metric`, if that is not empty.
// Throws: as latest_checkpoint(); std::system_error when one cannot be removed.
void prune_checkpoints(const std::filesystem::path& run_dir, int64_t keep,
                       const std::string& best_metric);

// Removes what saves and removals left that were interrupted, of RUN_DIR/checkpoints and of
// RUN_DIR/checkpoint-final. A directory whose replacement was interrupted gets its name back
// (engine::commit_directory). Call under the directory's lock.
// Throws: std::system_error when one cannot be removed or renamed.
void recover_checkpoints(const std::filesystem::path& run_dir);

// RUN_DIR/checkpoint-final
std::filesystem::path final_directory(const std::filesystem::path& run_dir);

// Writes the counters of the run that made a final directory into it.
// Throws: std::system_error.
void write_final_state(const std::filesystem::path& dir, const TrainingState& state);

// Finished steps of RUN_DIR/checkpoint-final; nullopt when there is none.
// Throws: std::runtime_error on an unreadable file.
std::optional<int64_t> final_step(const std::filesystem::path& run_dir);

}  // namespace ringside::rl
