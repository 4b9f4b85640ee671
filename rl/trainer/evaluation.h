// The mean reward on held-out prompts while training goes on.
#pragma once

#include <cstdint>
#include <memory>

#include "rl/trainer/training_run.h"

namespace ringside::rl {

class HeldOutPrompts;

class Evaluation {
 public:
  // Reads prompts and tokenizer on the main rank where config.eval.every is above 0. Not
  // collective. Throws std::runtime_error on unusable prompts or tokenizer.
  explicit Evaluation(TrainingRun& run);
  ~Evaluation();

  // After `step` steps; 0: before the first. The same on every rank.
  bool is_due(int64_t step) const;

  // The mean weighted reward of one completion per prompt of data.eval (the first eval.max_prompts;
  // 0 = all), at eval.temperature; 0 on the other ranks, which wait. Completions whose reward is
  // not to be had are left out, with a warning. Collective; blocks until all are sampled and
  // scored, which may take longer than a collective. Throws std::runtime_error when none could be
  // scored.
  double mean_reward() const;

 private:
  TrainingRun& run_;
  std::unique_ptr<HeldOutPrompts> prompts_;  // the main rank's
};

}  // namespace ringside::rl
