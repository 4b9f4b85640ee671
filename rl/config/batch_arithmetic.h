// Batch arithmetic: the counts that follow from the batch keys (prompts or samples, per rank or
// global), computed before step 1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// All counts are global: over every rank and worker together.
struct BatchArithmetic {
  int64_t samples_per_step = 0;  // prompts_per_step x group_size; sft: batch_size
  // Samples of the largest mini-batch; sizes differ by at most one.
  int64_t samples_per_mini_batch = 0;
  int64_t optimizer_steps_per_step = 0;  // num_iterations x num_mini_batches; sft: num_mini_batches
  int64_t optimizer_steps = 0;           // of the whole run
  int64_t samples = 0;                   // of the whole run
  // Prompt + completion; 0 for sft, whose lengths are in the data files.
  int64_t max_tokens_per_sample = 0;
  int64_t max_tokens_per_step = 0;     // 0 for sft
  int64_t sequence_parallel_size = 0;  // ring x Ulysses
  int64_t world_size = 0;              // replicas x sequence_parallel_size
};

// Of a configuration that passed check_combinations().
BatchArithmetic batch_arithmetic(const Config& config);

// The same in sentences, one line each, for `ringside check` and the start of a run's log.
std::vector<std::string> describe_batch(const Config& config);

}  // namespace ringside::rl
