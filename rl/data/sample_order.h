// Order in which a pass trains on a step's samples: all once in their own order, drawn anew by
// their rewards, shuffled. A function of the seed, the step and the pass, the same on every rank
// and after a restart. Torch-free. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// Which of a step's samples are trained on, [B], with repetitions: B draws with replacement, each
// by a weight of the sample's score. Of samples that may be drawn:
//   pow         |score|^power
//   max_min     1 for the highest and the lowest score of the step, 0 for the others
//   max_random  0.4 for the highest score, 0.1 for the others
// each + 1e-8. none: every sample once, in order, drawable or not.
// scores: before any KL. drawable: whether a sample may be drawn (it has a score and its group is
// trained on). Without such a sample: as none.
// Throws: std::invalid_argument for another number of scores, unless none, and another method.
// Source: Shen et al. 2024, Policy Filtration in RLHF (PF-PPO); verl's pf_ppo.
// Shapes: all [B].
std::vector<int64_t> drawn_samples(std::span<const double> scores,
                                   const std::vector<bool>& drawable,
                                   const ResamplingConfig& config, uint64_t seed);

// The samples of one pass: `drawn`, or with shuffle in an order of its own.
std::vector<int64_t> pass_order(std::vector<int64_t> drawn, bool shuffle, uint64_t seed);

// Whether the critic has passes or mini-batches of its own.
bool critic_has_own_passes(const Config& config);

// Whether some pass divides other samples, or the same in another order or number, into
// mini-batches than the scoring pass. Then all ranks need the columns of all tokens.
bool rearranges(const Config& config);

}  // namespace ringside::rl
