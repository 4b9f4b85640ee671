// What a run trained on, for people and audits: RUN_DIR/rollouts.jsonl, one line a rollout
// consumed, written before the step trains on it. A line names its step and the trainer_term of the
// trainer start that trained it; after a restart the steps beyond the checkpoint are trained again,
// so the run's final history is, for each step, the lines of the highest logged_in_term. Lines of
// earlier starts stay. Torch-free; not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "rollout_bridge/base/posix_file.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

class RolloutLog {
 public:
  // logged_in_term: -1 for a run without a bridge. Appends to the file and cuts a last line that an
  // earlier start left without its end. Throws std::system_error when the file cannot be opened or
  // cut.
  RolloutLog(const std::filesystem::path& path, int64_t logged_in_term);

  // Appends the step's rollouts: {step, logged_in_term, rollout_id, group_id, sample_index,
  // attempt, prompt_ids, completion_ids, logprobs, advantages, temperature, versions [{version,
  // begin, end}], trainer_term, finish_reason, rewards
  // [[name, value]]}, and loss_mask, turn_offsets, turn_rewards, branches where they are not empty:
  // what read_rollout_file() takes, so that `train --rollouts` can train on it again. begin: [B +
  // 1], advantage: [N], as in StepColumns and StepAdvantages: of the rollouts' loss tokens, what
  // the step trains on before any correction weight. A line's advantages are one a completion
  // token, null where it carries no loss. Throws std::invalid_argument when lengths differ, naming
  // the rollout where it is one's, and std::system_error when they cannot be written whole.
  void write(int64_t step, std::span<const bridge::Rollout> rollouts,
             std::span<const int64_t> begin, std::span<const double> advantage);

 private:
  bridge::PosixFile file_;
  int64_t logged_in_term_;
};

// RUN_DIR/rollouts.jsonl. The term is that of RUN_DIR/bridge/endpoint.json, which a live source has
// written by then; -1 without one. Throws what RolloutLog and read_endpoint_file() throw.
RolloutLog open_rollout_log(const std::filesystem::path& run_dir);

}  // namespace ringside::rl
