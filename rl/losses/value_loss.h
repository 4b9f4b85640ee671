// Loss of PPO's value model per loss token, and the statistics for its metrics, as pure functions
// of tensors.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "rl/losses/figures.h"

namespace ringside::rl {

// The value loss: per token 0.5 max((v - R)^2, (clamp(v, old - c, old + c) - R)^2) with c =
// value_clip, or 0.5 (v - R)^2 for c = 0. The loss is the sum times token_weight, which is one over
// the loss tokens of the mini-batch. The gradient flows through value_n. All three tensors have one
// floating-point dtype. n may be 0: the loss is then a zero with a gradient path.
// Returns: a scalar, this rank's weighted sum, to be summed over ranks; differentiable.
// Figures: loss (adds up to the update's), tokens, and clipped, the mean over tokens of those whose
// clipped value has the larger error; they have no gradient.
// Throws: c10::Error on columns of different lengths or a negative value_clip.
// Source: PPO2's value loss in OpenAI Baselines (Schulman et al. 2017); verl,
// core_algos.compute_value_loss with token-mean.
at::Tensor value_loss(const at::Tensor& value_n, const at::Tensor& old_value_n,
                      const at::Tensor& return_n, double token_weight, double value_clip,
                      Figures& figures);

// Count, mean and sum of squared deviations from the mean. += merges the moments of parts without
// subtracting large sums: a mean far from 0 costs no digits of the variance.
// Source: Chan, Golub and LeVeque 1979.
struct Moments {
  double count = 0.0;
  double mean = 0.0;
  double squares = 0.0;

  // Of one part, in two passes in fp64. x_n may be empty.
  // Blocks: until the device of x_n is done.
  static Moments of(const at::Tensor& x_n);
  Moments& operator+=(const Moments& other);
};

// Statistics of values against returns, of host tensors. Merged over micro-batches, ranks and
// updates.
struct ValueStatistics {
  Moments value;
  Moments return_;
  Moments residual;  // return - value
  double value_min = std::numeric_limits<double>::infinity();
  double value_max = -std::numeric_limits<double>::infinity();

  // Of this rank's loss entries.
  // Shapes: both [n].
  // Throws: c10::Error when the lengths differ.
  static ValueStatistics of(const at::Tensor& value_n, const at::Tensor& return_n);
  ValueStatistics& operator+=(const ValueStatistics& other);

  // 1 - Var(R - V) / Var(R): 1 = perfect prediction, 0 = no better than a constant, below 0 =
  // worse. 0 if the returns do not vary.
  // Source: explained_variance of OpenAI Baselines.
  double explained_variance() const;
};

}  // namespace ringside::rl
