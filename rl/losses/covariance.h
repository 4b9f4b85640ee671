// Covariance of each token's log-prob and advantage, for losses that treat the tokens apart that
// drive a policy's entropy down. Torch-free.
// Thread safety: pure functions.
// Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning, section 4.
#pragma once

#include <cstddef>
#include <vector>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {

// The covariance of each token of the part, [count]: (A - mean A) (log-prob - mean log-prob), with
// the old policy's log-probs and means over the part. The part is a mini-batch over all ranks, so
// a choice by it depends neither on the ranks nor on the micro-batches.
// Throws: std::invalid_argument for columns of different lengths.
std::vector<double> token_covariances(const ChoicePart& part);

// 1 for the first `share` x count (rounded down) of the candidates, which are tokens below count;
// 0 for the others. At least one token is chosen where there is a candidate.
std::vector<double> choose_first(const std::vector<std::size_t>& candidates, double share,
                                 std::size_t count);

}  // namespace ringside::rl
