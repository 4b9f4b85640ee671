// Interface of a policy loss, and the table of all. A loss is one file of this folder: its term per
// token, and what it needs beside the probability ratio. Its keys are in rl/config, which has no
// torch.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "rl/config/config.h"
#include "rl/losses/sequence_means.h"

namespace ringside::rl {

struct PolicyTerms {
  at::Tensor logprob_n;  // of the current policy; carries the gradient
  at::Tensor old_n;      // of the policy that the ratio is taken against
  at::Tensor advantage_n;
  at::Tensor chosen_n{};  // 1 for tokens that the loss treats apart, else 0; undefined = none
};

// A policy loss. Pure functions.
struct PolicyLoss {
  PolicyLossName name;
  // The loss of each token, [n], of the ratio exp(log_ratio_n); differentiable with respect to
  // logprob_n.
  at::Tensor (*term)(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                     const AlgorithmConfig& config);
  // The log ratio of a loss that does not take that of algorithm.importance_level; nullptr = it
  // does. of_token_n: logprob - old, bounded.
  at::Tensor (*own_log_ratio)(const PolicyTerms& terms, const at::Tensor& of_token_n,
                              const AlgorithmConfig& config,
                              const SequenceMeans& sequences) = nullptr;
};

// The loss of that name.
// Throws: std::invalid_argument for a name that is not in the table.
const PolicyLoss& policy_loss(PolicyLossName name);

// The losses, one file each.
extern const PolicyLoss kPpoClipLoss, kCispoLoss, kSapoLoss, kDppoTvLoss, kGmpoLoss, kReinforceLoss,
    kClipCovLoss, kKlCovLoss, kDppoKlLoss;

// Value of `mean_n`, gradient of `token_n`: a sequence's mean in token form.
at::Tensor in_token_form(const at::Tensor& mean_n, const at::Tensor& token_n);

// The bounds (low, high) outside which the clip metrics count a ratio as clipped.
std::pair<double, double> ratio_bounds(const AlgorithmConfig& config);

}  // namespace ringside::rl
