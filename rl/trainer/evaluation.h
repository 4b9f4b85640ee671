// Evaluation on sets of held-out prompts during training: mean reward, pass@k, lengths.
#pragma once

#include <cstdint>
#include <memory>

#include "rl/trainer/training_run.h"

namespace ringside::rl {

class HeldOutPrompts;

class Evaluation {
 public:
  // Reads prompts and tokenizer on rank 0 if config.eval.every is above 0. Not collective.
  // Throws: std::runtime_error on unusable prompts or tokenizer.
  explicit Evaluation(TrainingRun& run);
  ~Evaluation();

  // Whether an evaluation is due after `step` steps; step 0: before training. The same on every
  // rank.
  bool is_due(int64_t step) const;

  // eval_metrics() of each of eval_sets(): eval.samples completions per prompt at eval.temperature.
  // Only the first eval.max_prompts prompts of a set are used (0 = all). The metrics are on rank 0;
  // the other ranks wait and return none. Completions whose reward is unavailable are left out,
  // with a warning. Collective over: the world. Blocks: until all completions are sampled and
  // scored, which may take longer than parallel.collective_timeout_s. Throws: std::runtime_error
  // when no completion of a set could be scored.
  Metrics metrics() const;

 private:
  TrainingRun& run_;
  std::unique_ptr<HeldOutPrompts> prompts_;  // only on rank 0
};

}  // namespace ringside::rl
