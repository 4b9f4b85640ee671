// Counters of a run, as its checkpoints hold them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringside::rl {

// Random numbers need no state: sampling and data order are functions of (seed, group, sample).
struct TrainingState {
  int64_t step = 0;  // finished steps; also the data cursor: step s consumes the s-th batch
  int64_t optimizer_step = 0;  // finished optimizer steps, for the schedule
  int64_t weight_version = 0;  // version of the weights in the checkpoint
  int64_t seed = 0;
  std::string run_id;         // names the run on the wire and in journals
  double kl_coef = 0.0;       // current value of the adaptive KL coefficient
  double entropy_coef = 0.0;  // current value of the adaptive entropy bonus
  // Entropy of the policy at the last optimizer step: decides whether the bonus is active.
  double entropy = 0.0;
  // Of data.curriculum, as Curriculum::state(); "" without one. Rank 0's.
  std::string curriculum{};
  // With lora.adapters a state for each, in their order. Optimizer steps, coefficients and entropy
  // are each one's own; all else is as above.
  std::vector<TrainingState> adapters{};
};

}  // namespace ringside::rl
