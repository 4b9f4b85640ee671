// Penalty for repeated n-grams in a completion.
#pragma once

#include "rl/rewards/reward.h"

namespace ringside::rl {

// -(share of the completion's n-grams that occurred before), n = options.repetition_ngram words
// separated by ASCII white space. 0 when none repeats or there are fewer than n words; towards -1
// when all but the first repeat. N-grams are compared by 64-bit hashes.
// Throws: std::invalid_argument when n < 1.
// Source: Yeo et al. 2025, Demystifying Long Chain-of-Thought, over the whole completion.
Reward repetition_reward(const RewardOptions& options);

}  // namespace ringside::rl
