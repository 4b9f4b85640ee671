#include "rl/trainer/run_checkpoints.h"

#include <utility>

namespace ringside::rl {

RunCheckpoints::RunCheckpoints(CheckpointConfig config, std::filesystem::path run_dir,
                               std::filesystem::path tokenizer_from)
    : config_(config), run_dir_(std::move(run_dir)), tokenizer_from_(std::move(tokenizer_from)) {}

std::optional<TrainingState> RunCheckpoints::resume(engine::ModelRunner& policy) {
  const auto found = latest_checkpoint(run_dir_);
  if (!found) {
    return std::nullopt;
  }
  TrainingState state = load_checkpoint(*found, policy);
  resumed_parts_ = *found / "trainer";
  newest_ = *found;
  newest_step_ = state.step;
  return state;
}

void RunCheckpoints::write(const std::filesystem::path& dir, const engine::ModelRunner& policy,
                           const TrainingState& state) const {
  save_checkpoint(dir, policy, state, tokenizer_from_, parts_);
  prune_checkpoints(run_dir_, config_.keep);
}

void RunCheckpoints::set_newest(const std::filesystem::path& dir, int64_t step) {
  newest_ = dir;
  newest_step_ = step;
  start_clock();
}

bool RunCheckpoints::is_due_by_steps(int64_t step) const {
  return config_.every > 0 && step % config_.every == 0;
}

bool RunCheckpoints::is_due_by_time() const {
  const std::chrono::duration<double, std::ratio<60>> since =
      std::chrono::steady_clock::now() - newest_at_;
  return config_.every_minutes > 0 && since.count() >= config_.every_minutes;
}

}  // namespace ringside::rl
