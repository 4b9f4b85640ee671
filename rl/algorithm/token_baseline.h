// Optimal token baseline: a baseline for each place of a group's samples. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/algorithm/step_columns.h"

namespace ringside::rl {

// The baseline of every loss token. With p_j the probability of loss token j of a sample under the
// old policy and s_j the sum of the squared probabilities at its position, 1 - 2 p_j + s_j is the
// squared length of the gradient of log p_j with respect to the logits. W_t is its sum over the
// sample's loss tokens up to t, each times the square of the token's correction, if there is one.
// The baseline at place t of a group is the sum of G_t W_t / (the sum of W_t + 1e-8), over the
// samples that have a loss token t: the baseline that makes the variance of the gradient least, if
// W_t stands for the squared length of the gradient so far. 0 beyond the second longest sample of a
// group, where there is no other to compare with, and in a group of one.
// Reads begin, old, squares and correction.
// returns: [N] G_t, rewards from t on.
// Throws: std::invalid_argument for lengths that differ, or numbers that are not finite.
// Source: verl 0.9.1's tir_optimal_token_baseline, of which optimal_token_baseline is the case in
// which no token of a sample is the environment's; there the place of a token counts such tokens.
// Shapes: [N].
std::vector<double> optimal_token_baselines(const StepColumns& table,
                                            std::span<const double> returns, int64_t group_size);

}  // namespace ringside::rl
