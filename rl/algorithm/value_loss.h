// The loss of PPO's value model per loss token, and what its metrics are made of, as pure functions
// of tensors. Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace ringside::rl {

// Sums over loss entries; those of micro-batches and ranks add up.
struct ValueSums {
  double loss = 0.0;  // weighted: adds up to the update's loss
  double tokens = 0.0;
  double clipped = 0.0;  // tokens whose clipped value has the larger error, which earns no gradient

  ValueSums& operator+=(const ValueSums& other);
};

struct ValueLoss {
  at::Tensor loss;  // scalar: this rank's weighted sum, to be summed over ranks; differentiable
  ValueSums sums;
};

// Per token 0.5 max((v - R)^2, (clamp(v, old - c, old + c) - R)^2) with c = value_clip, 0.5 (v -
// R)^2 for c = 0; the loss is the sum times token_weight, one over the loss tokens of the
// mini-batch. Source: PPO2's value loss in OpenAI Baselines (Schulman et al. 2017); verl,
// core_algos.compute_value_loss with token-mean. value_n carries the gradient; all three are of one
// floating-point dtype. n may be 0: the loss is then a zero that still has a gradient path. Throws
// c10::Error on columns of different lengths or a negative value_clip.
ValueLoss value_loss(const at::Tensor& value_n, const at::Tensor& old_value_n,
                     const at::Tensor& return_n, double token_weight, double value_clip);

// Count, mean and sum of squared deviations from the mean of numbers. Moments of parts merge with
// += by the formula of Chan, Golub and LeVeque (1979), which subtracts no large sums: means far
// from 0 cost no digits of the variance.
struct Moments {
  double count = 0.0;
  double mean = 0.0;
  double squares = 0.0;

  // Of one part, in two passes in fp64. x_n may be empty.
  static Moments of(const at::Tensor& x_n);
  Moments& operator+=(const Moments& other);
};

// What values say of returns. Merges over micro-batches, ranks and updates.
struct ValueStatistics {
  Moments value;
  Moments return_;
  Moments residual;  // return - value
  double value_min = std::numeric_limits<double>::infinity();
  double value_max = -std::numeric_limits<double>::infinity();

  static ValueStatistics of(const at::Tensor& value_n, const at::Tensor& return_n);
  ValueStatistics& operator+=(const ValueStatistics& other);

  // 1 - Var(R - V) / Var(R): 1 = foreseen, 0 = no better than a constant, below 0 = worse. 0 where
  // returns do not vary.
  double explained_variance() const;
};

}  // namespace ringside::rl
