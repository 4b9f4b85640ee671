// Reward of a user's Python function, called for batches in kept processes. Torch-free.
//
//   def score(prompts, completions, answers, **columns): return [1.0 for _ in completions]
//
// The function is called with lists by keyword: prompts, completions, answers (texts),
// completion_tokens (numbers), truncated (booleans), and every other field of the data by its name.
// It gets only those that it has parameters for, or all with **. It returns one number a
// completion, of magnitude kMaxReward at most, or None for a completion that has no score. When it
// raises for a batch, it is called again for each completion alone, within half the time of a call:
// an exception costs only the completions that raise it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "rl/python/python_process.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {

// Thread safety: all methods.
class PythonReward {
 public:
  // Starts nothing.
  PythonReward(const WeightedReward& reward, const RewardOptions& options);

  struct Score {
    double value = 0.0;
    std::string failure;       // why there is no score; "" when there is one
    bool is_declined = false;  // the function returned None
  };

  // Imports the file in one process and looks the function up.
  // Blocks: as PythonProcess::start.
  // Throws: std::invalid_argument with file, line and message.
  void load();

  // One score per input. The inputs are divided among the processes. A process that ends, or does
  // not answer in time, is started again for the next call; the inputs of the call have no score.
  // Blocks: while all processes are busy with other calls, each of which ends at its own deadline,
  // and as PythonProcess::ask.
  std::vector<Score> score(std::span<const RewardInput> inputs);

 private:
  class Lease;
  std::vector<Score> score_part(std::span<const RewardInput> inputs);

  std::string name_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<PythonProcess>> processes_;
  std::vector<PythonProcess*> free_;
};

}  // namespace ringside::rl
