// Correction of the mismatch with the policy that sampled, measured with the current policy in the
// loss of each mini-batch (algorithm.correction.ratio_of current), and not once before the updates.
// Shapes: n = loss entries of this rank.
// Source: verl 0.9.1's bypass_mode (compute_policy_loss_bypass_mode).
#pragma once

#include <ATen/core/Tensor.h>

#include "rl/config/config.h"
#include "rl/losses/sequence_means.h"

namespace ringside::rl {

struct CurrentCorrection {
  at::Tensor weight_n;  // of the policy term; 0 for rejected tokens
  at::Tensor kept_n;    // bool: neither the mode nor a criterion rejects the token
};

// The weights of correction_weights() (rl/algorithm/correction.h) with the current policy in the
// old one's place, without gradient. A sequence is a document: in a forked conversation each branch
// is one.
// Collective over: the ranks that share the sequences, for a level or a criterion of sequences.
// Throws: std::invalid_argument for a config.reject that checked_rejections() has not returned.
CurrentCorrection current_correction(const at::Tensor& logprob_n, const at::Tensor& rollout_n,
                                     const CorrectionConfig& config,
                                     const SequenceMeans& sequences);

}  // namespace ringside::rl
