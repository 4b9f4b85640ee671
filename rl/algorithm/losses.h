// Policy loss over loss tokens as pure functions of tensors, and the sums for its metrics.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rl/algorithm/entry_columns.h"
#include "rl/config/config.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Sums over loss entries. The figures of the whole step: add the sums of all micro-batches and
// ranks, and take the maximum of the last field.
struct LossSums {
  // weighted by the entries' weights: add up to the step's loss
  double loss = 0.0;
  double policy_loss = 0.0;
  // plain sums over tokens
  double tokens = 0.0;
  double kl = 0.0;
  double entropy = 0.0;
  double ratio_clipped_low = 0.0;   // A < 0 and ratio below its lower bound
  double ratio_clipped_high = 0.0;  // A > 0 and ratio above its upper bound
  double old_kl = 0.0;              // old - current log-prob
  double opsm_masked = 0.0;         // masked out by correction.opsm_delta
  // of the rollout's log-probs against the trainer's, which are the old policy's, and the current
  // policy's with old_logprobs rollout; rho = exp(trainer - rollout), its log within -20 .. 20
  double sampling_difference = 0.0;  // |trainer - rollout|
  double mult_prob_error = 0.0;      // exp |trainer - rollout|
  double rollout_kl = 0.0;           // rollout - trainer
  double rollout_k3 = 0.0;           // rho - 1 - log rho
  double rho = 0.0;
  double rho_squared = 0.0;
  // maximum over tokens
  double sampling_difference_max = 0.0;

  // The sums that add up over ranks and micro-batches, as a list in a fixed order, and back.
  // from() throws std::out_of_range for a list that is too short.
  std::vector<double> additive() const;
  static LossSums from(const std::vector<double>& additive, double sampling_difference_max);
};

// The same figures on the device. Nothing waits for them until they are fetched.
struct LossFigures {
  at::Tensor additive_k;               // fp64, in the order of LossSums::additive()
  at::Tensor sampling_difference_max;  // fp64 []

  // Blocks: until the device is done; one host sync.
  LossSums fetch() const;
};

struct PolicyLoss {
  at::Tensor loss;  // scalar: this rank's weighted sum, to be summed over ranks; differentiable
  LossFigures figures;
};

// Inputs of the loss besides the entries.
struct LossContext {
  double kl_coef = 0.0;       // current value of the adaptive coefficient
  double entropy_coef = 0.0;  // 0 = no bonus
  int64_t loss_tokens = 1;    // of the whole mini-batch, over all ranks
  int64_t num_sequences = 1;  // entries' samples lie in [0, num_sequences)
  // The ranks that share the sequences; nullptr = this rank alone.
  sp::Communicator* sequence = nullptr;
};

// The policy loss: loss = sum of weight * L - entropy_coef * entropy, where the entropy is the mean
// of all loss tokens or, with algorithm.entropy_aggregation loss, the sum of weight * entropy; with
// L = correction * policy_objective + kl_coef * kl_estimate per token (policy_objective.h). L has
// the KL term only if algorithm.kl_in is loss. Off-policy sequence masking: a sequence with A < 0
// whose policy has drifted too far from the sampling policy has no policy term
// (correction.opsm_delta). The gradient flows through logprob_n, and through entropy_n if there is
// a bonus. n may be 0: the loss is then a zero with a gradient path, so that a rank without tokens
// joins the collectives of the backward pass.
// Collective over: context.sequence, if the configuration needs per-sequence values.
// Source: off-policy sequence masking, DeepSeek-V3.2 2025, section 3.1.
// Shapes: logprob_n and entropy_n are [n], in the dtype of the entries.
PolicyLoss policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const EntryColumns& entries, const AlgorithmConfig& config,
                                const LossContext& context);

// Negative log-likelihood: loss = -sum of weight * logprob. The gradient flows through logprob_n.
// entropy_n is for the metrics alone. n may be 0, as above.
// Shapes: all [n].
PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n);

}  // namespace ringside::rl
