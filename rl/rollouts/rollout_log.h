// Logs of the rollouts that a run trained on: RUN_DIR/rollouts.jsonl with every consumed rollout,
// and RUN_DIR/samples.jsonl with a few of each step for reading. A line names its step and the
// trainer_term that trained it. After a restart the steps beyond the checkpoint are trained again.
// The run's final history is, for each step, the lines with the highest logged_in_term. Lines of
// earlier terms stay. Torch-free.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/rollouts/sample_images.h"
#include "rollout_bridge/base/posix_file.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

class RolloutLog {
 public:
  // Opens the file for appending. Removes an incomplete last line that an earlier process left.
  // logged_in_term: -1 for a run without a bridge. tokenizer: of the texts; nullopt = ids alone.
  // Throws: std::system_error when the file cannot be opened or truncated.
  RolloutLog(const std::filesystem::path& path, int64_t logged_in_term,
             std::optional<engine::Tokenizer> tokenizer = std::nullopt);

  // Appends the step's rollouts: {step, logged_in_term, rollout_id, group_id, sample_index,
  // attempt, prompt, completion, prompt_ids, completion_ids, logprobs, advantages, temperature,
  // versions [{version, begin, end}], trainer_term, finish_reason, rewards [[name, value]]}, and
  // loss_mask, turn_offsets, turn_rewards, branches, images, routed_experts where they are not
  // empty. prompt and completion are texts with special tokens, null without a tokenizer.
  // read_rollout_file() reads this format, so `train --rollouts` can train on the file again, but
  // for rollouts with images in their conversations, whose pixels are not there. A line holds one
  // advantage per completion token, null for a token without loss. Shapes: begin [B + 1] and
  // advantage [N], as in StepColumns and StepAdvantages: over the rollouts' loss tokens, as trained
  // on before any correction weight. Throws: std::invalid_argument when lengths differ, naming the
  // rollout if one is at fault; std::system_error when the lines cannot be written completely.
  void write(int64_t step, std::span<const bridge::Rollout> rollouts,
             std::span<const int64_t> begin, std::span<const double> advantage);

 private:
  bridge::PosixFile file_;
  int64_t logged_in_term_;
  std::optional<engine::Tokenizer> tokenizer_;
};

// A rollout of the step with its figures per loss token.
struct LoggedSample {
  const bridge::Rollout* rollout = nullptr;
  std::string answer{};                 // the prompt's reference answer; empty without one
  double reward = 0.0;                  // the total that advantages are computed from
  std::span<const double> advantage{};  // [n] n = its loss tokens
  // [n] the trainer's, of the step's first forward pass over it; empty: none
  std::span<const double> old_logprob{};
  // [n] the trainer's, after the step or of its last training pass; empty: none
  std::span<const double> new_logprob{};
  std::vector<LoggedImage> images{};  // of the prompt and the conversation
};

// Log of a few samples of each step, with figures for each token.
// Thread safety: none.
class SampleLog {
 public:
  // Only this many tokens of a completion are written with their figures.
  static constexpr std::size_t kMaxTokens = 2048;

  // As RolloutLog. placeholder: the id that stands for an image in prompts; -1: none does.
  SampleLog(const std::filesystem::path& path, int64_t logged_in_term,
            std::optional<engine::Tokenizer> tokenizer, int64_t placeholder = -1);

  // Appends {step, logged_in_term, group_id, sample_index, reward, rewards [[name, value]],
  // finish_reason, version, prompt, answer, completion, length, tokens [text], logprobs,
  // old_logprobs, new_logprobs, advantages} for each sample; answer is null if it is empty. A
  // sample with images has images [{name, uri}] too; its texts have each image's placeholders once,
  // with their number. The
  // last five have one value for each of the first
  // kMaxTokens completion tokens; the last three are null for a token without loss, and absent
  // where the sample has none. Without a tokenizer prompt and completion are null, and tokens are
  // ids as text. version: of the first token.
  // Throws: as RolloutLog::write.
  void write(int64_t step, std::span<const LoggedSample> samples);

 private:
  bridge::PosixFile file_;
  int64_t logged_in_term_;
  std::optional<engine::Tokenizer> tokenizer_;
  int64_t placeholder_;
};

// Up to `count` indices into `score`: the lowest, the highest, the second lowest and so on. Among
// equals the first.
std::vector<std::size_t> lowest_and_highest(std::span<const double> score, std::size_t count);

// Opens RUN_DIR/rollouts.jsonl and RUN_DIR/samples.jsonl. The term is read from
// RUN_DIR/bridge/endpoint.json, which a live source has written by then; -1 without that file. The
// tokenizer is that of `model`, if it has one.
// Throws: what RolloutLog and read_endpoint_file() throw.
RolloutLog open_rollout_log(const std::filesystem::path& run_dir,
                            const std::filesystem::path& model);
SampleLog open_sample_log(const std::filesystem::path& run_dir, const std::filesystem::path& model,
                          int64_t placeholder);

}  // namespace ringside::rl
