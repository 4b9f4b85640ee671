// Checkpoints of one run: the newest, when the next is due, and what they hold besides the policy.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/trainer/checkpoint.h"

namespace ringside::rl {

class RunCheckpoints {
 public:
  // `tokenizer_from`: as of save_checkpoint.
  RunCheckpoints(CheckpointConfig config, std::filesystem::path run_dir,
                 std::filesystem::path tokenizer_from);

  // Loads the newest checkpoint of the run directory into the policy; nullopt when there is none.
  // Throws: as load_checkpoint does.
  std::optional<TrainingState> resume(engine::ModelRunner& policy);
  // The trainer/ folder of the checkpoint that was resumed; nullopt for a run from step 0.
  const std::optional<std::filesystem::path>& resumed_parts() const { return resumed_parts_; }

  void add_part(CheckpointPart part) { parts_.push_back(std::move(part)); }
  // Writes a checkpoint and removes those that are too many. Rank 0 only.
  // Throws: as save_checkpoint does.
  void write(const std::filesystem::path& dir, const engine::ModelRunner& policy,
             const TrainingState& state) const;
  // Every rank records that rank 0 has written this checkpoint.
  void set_newest(const std::filesystem::path& dir, int64_t step);

  // Empty: there is none yet.
  const std::filesystem::path& newest() const { return newest_; }
  int64_t newest_step() const { return newest_step_; }
  // checkpoint.every and checkpoint.every_minutes. The clock is this rank's.
  bool is_due_by_steps(int64_t step) const;
  bool is_due_by_time() const;
  void start_clock() { newest_at_ = std::chrono::steady_clock::now(); }

 private:
  CheckpointConfig config_;
  std::filesystem::path run_dir_;
  std::filesystem::path tokenizer_from_;
  std::optional<std::filesystem::path> resumed_parts_;
  std::vector<CheckpointPart> parts_;
  std::filesystem::path newest_;
  int64_t newest_step_ = 0;
  std::chrono::steady_clock::time_point newest_at_;
};

}  // namespace ringside::rl
