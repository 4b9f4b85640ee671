// Losses of an update over its loss tokens as functions of tensors, and their figures: policy
// gradient and fine-tuning.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/runner/columns.h"
#include "rl/config/config.h"
#include "rl/losses/figures.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Inputs of the loss besides the entries.
struct LossContext {
  double kl_coef = 0.0;       // current value of the adaptive coefficient
  double entropy_coef = 0.0;  // 0 = no bonus
  int64_t loss_tokens = 1;    // of the whole mini-batch, over all ranks
  int64_t num_sequences = 1;  // entries' samples lie in [0, num_sequences)
  // The ranks that share the sequences; nullptr = this rank alone.
  sp::Communicator* sequence = nullptr;
};

// The policy loss: loss = sum of weight * L - entropy_coef * entropy, with L = correction *
// policy_objective + kl_coef * kl_estimate per token (policy_objective.h). The entropy is the mean
// of all loss tokens, or with entropy_aggregation loss the sum of weight * entropy; with
// correction.drop_rejected without the tokens of weight 0, which count in the mean. L has the KL
// term only if algorithm.kl_in is loss. Off-policy sequence masking: a sequence with A < 0
// whose policy has drifted too far from the sampling policy has no policy term
// (correction.opsm_delta). The gradient flows through logprob_n, and through entropy_n if there is
// a bonus. n may be 0: the loss is then a zero with a gradient path, so that a rank without tokens
// joins the collectives of the backward pass.
// Returns: a scalar, this rank's weighted sum, to be summed over ranks; differentiable.
// Figures:
//   sums: loss and policy_loss, which add up to the step's, and tokens
//   means over tokens: kl, teacher_kl (log-prob - teacher's), entropy, old_kl (old - current
//   log-prob), opsm_masked, chosen, clipped_low (A < 0 and ratio below its lower bound),
//   clipped_high (A > 0 and ratio above its upper bound) means over tokens, of the rollout's
//   log-probs against the trainer's, rho = exp(trainer - rollout), its log within -20 .. 20:
//   sampling_difference (|trainer - rollout|), mult_prob_error (exp |trainer - rollout|),
//   rollout_kl (rollout - trainer), rollout_k3 (rho - 1 - log rho), rho, rho_squared; and the
//   maximum sampling_difference_max. The trainer's are the old policy's, with old_logprobs rollout
//   the current policy's. With correction.ratio_of current: means of the weights current_weight, of
//   their squares current_weight_squared, and current_rejected, the share of those that are 0.
// Collective over: context.sequence, if the configuration needs per-sequence values.
// Source: off-policy sequence masking, DeepSeek-V3.2 2025, section 3.1.
// entries: the columns sample (int64: the entry's sequence in its mini-batch), weight,
// rollout_logprob, reference_logprob, advantage and correction; old_logprob, without which the old
// policy is the current one; teacher_logprob, if there is a teacher; chosen, if the loss chooses
// tokens.
// whole_logprob_n: of logprob_n over kept sets the log-probs over the whole vocabulary, which the
// KL to a reference is of (as in NeMo-RL); undefined: logprob_n is that. Shapes: logprob_n,
// entropy_n and the entries are [n], of one floating-point dtype. Throws: c10::Error when an entry
// is missing.
at::Tensor policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const engine::Columns& entries, const AlgorithmConfig& config,
                                const LossContext& context, Figures& figures,
                                const at::Tensor& whole_logprob_n = {});

// Negative log-likelihood: loss = -sum of weight * logprob. The gradient flows through logprob_n.
// entropy_n is for the figures alone: loss, policy_loss, tokens, entropy. n may be 0, as above.
// Shapes: all [n].
at::Tensor sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n, Figures& figures);

}  // namespace ringside::rl
