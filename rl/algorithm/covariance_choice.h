// Choice of the tokens that the losses clip_cov and kl_cov treat apart: those whose advantage and
// log-prob vary together the most, which drive a policy's entropy down. Torch-free.
// Thread safety: pure functions.
// Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning, section 4.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/algorithm/step_columns.h"
#include "rl/config/config.h"

namespace ringside::rl {

// Whether the loss acts on tokens chosen by the covariance of log-prob and advantage.
constexpr bool chooses_by_covariance(PolicyLossName loss) {
  return loss == PolicyLossName::kClipCov || loss == PolicyLossName::kKlCov;
}

// Loss tokens [begin, begin + count) of a table, and where their random choice starts.
struct ChoicePart {
  int64_t begin = 0;
  int64_t count = 0;
  uint64_t seed = 0;
};

// The covariance of each token of the part, [count]: (A - mean A) (log-prob - mean log-prob), with
// the old policy's log-probs and means over the part.
// Throws: std::out_of_range for a part beyond the columns advantage and old.
std::vector<double> token_covariances(const StepColumns& table, const ChoicePart& part);

// 1 for the chosen tokens of the part, 0 for the others, [count]. At least one token is chosen
// where one can be.
//   clip_cov  clip_cov.ratio of the part's tokens, rounded down, drawn by the seed from those whose
//             covariance is between clip_cov.lb and clip_cov.ub; all of these if they are fewer
//   kl_cov    the kl_cov.ratio of the part's tokens, rounded down, with the largest covariance
// The part is a mini-batch over all ranks, so the choice depends neither on the ranks nor on the
// micro-batches. verl chooses anew in each micro-batch, by the current policy's log-probs (equal to
// the old ones in a step's first optimizer step), and never draws a token that the clip holds,
// which has no gradient anyway.
// Throws: as token_covariances(), and std::invalid_argument for another loss.
std::vector<double> choose_by_covariance(const StepColumns& table, const ChoicePart& part,
                                         const AlgorithmConfig& config);

}  // namespace ringside::rl
