// Log of the rollouts that a run trained on: RUN_DIR/rollouts.jsonl, one line per consumed rollout,
// written before the step trains on it. A line names its step and the trainer_term that trained it.
// After a restart the steps beyond the checkpoint are trained again. The run's final history is,
// for each step, the lines with the highest logged_in_term. Lines of earlier terms stay.
// Torch-free.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "rollout_bridge/base/posix_file.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

class RolloutLog {
 public:
  // Opens the file for appending. Removes an incomplete last line that an earlier process left.
  // logged_in_term: -1 for a run without a bridge.
  // Throws: std::system_error when the file cannot be opened or truncated.
  RolloutLog(const std::filesystem::path& path, int64_t logged_in_term);

  // Appends the step's rollouts: {step, logged_in_term, rollout_id, group_id, sample_index,
  // attempt, prompt_ids, completion_ids, logprobs, advantages, temperature, versions [{version,
  // begin, end}], trainer_term, finish_reason, rewards [[name, value]]}, and loss_mask,
  // turn_offsets, turn_rewards, branches where they are not empty. read_rollout_file() reads this
  // format, so `train --rollouts` can train on the file again. A line holds one advantage per
  // completion token, null for a token without loss.
  // Shapes: begin [B + 1] and advantage [N], as in StepColumns and StepAdvantages: over the
  // rollouts' loss tokens, as trained on before any correction weight.
  // Throws: std::invalid_argument when lengths differ, naming the rollout if one is at fault;
  // std::system_error when the lines cannot be written completely.
  void write(int64_t step, std::span<const bridge::Rollout> rollouts,
             std::span<const int64_t> begin, std::span<const double> advantage);

 private:
  bridge::PosixFile file_;
  int64_t logged_in_term_;
};

// Opens RUN_DIR/rollouts.jsonl. The term is read from RUN_DIR/bridge/endpoint.json, which a live
// source has written by then; -1 without that file.
// Throws: what RolloutLog and read_endpoint_file() throw.
RolloutLog open_rollout_log(const std::filesystem::path& run_dir);

}  // namespace ringside::rl
