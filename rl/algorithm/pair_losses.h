// Losses of preference learning as functions of the scores of whole documents, with their
// derivatives: DPO and its relatives, and the Bradley-Terry loss of a reward model. Torch-free; the
// same on every rank.
//
// A loss of pairs needs both scores of a pair, whose tokens may lie on several ranks and in several
// micro-batches. So a step first scores all documents without gradients and computes here the
// derivative c_d of the loss towards each document's score s_d. Then it runs the backward of
// sum_d c_d s_d. That is the gradient of the loss itself, not an approximation: the loss depends on
// the weights through the s_d alone, and by the chain rule its gradient is sum_d (dL/ds_d) grad s_d
// at the weights that were scored.
//
// Shapes: P pairs, D = 2 P documents: chosen and rejected of each pair, in this order.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// What the pairs of a step, or of an evaluation, are compared by.
struct ScoredPairs {
  std::vector<double> score{};      // [D] sum of the completion's log-probs, or the reward
  std::vector<double> reference{};  // [D] of the reference policy; empty for a reward model
  std::vector<int64_t> tokens{};    // [D] of the completions; empty for a reward model

  int64_t pairs() const { return static_cast<int64_t>(score.size()) / 2; }
};

// Sums over the pairs; a mean is one of them by `pairs`.
struct PairFigures {
  double pairs = 0.0;
  double loss = 0.0;           // of the pairs, without the term of chosen tokens
  double correct = 0.0;        // pairs whose chosen reward is above the rejected one
  double chosen_reward = 0.0;  // DPO: beta (log-prob - reference); else the model's output
  double rejected_reward = 0.0;
  double chosen_score = 0.0;  // log-probs; for a reward model the same as the rewards
  double rejected_score = 0.0;
  double chosen_tokens = 0.0;
  double min_reward = 0.0;  // of all documents; 0 without any
  double max_reward = 0.0;

  PairFigures& operator+=(const PairFigures& other);
  // Mean of a sum over the pairs; 0 without any.
  double mean(double PairFigures::*sum) const;
  // The loss of all pairs together, sft_coef x (mean negative log-prob of the chosen tokens)
  // included.
  double total_loss(double sft_coef) const;
};

struct PairLosses {
  PairFigures figures;
  std::vector<double> derivative;  // [D] of the sum of the pairs' losses towards each score
};

// With x = score - reference and d = x(chosen) - x(rejected), per pair
//   sigmoid  -(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d), e = label_smoothing
//   hinge    max(0, 1 - beta d)
//   ipo      (x(chosen) / tokens - x(rejected) / tokens - 1 / (2 beta))^2
// Throws: std::invalid_argument for columns of other lengths than [D].
// Source: Rafailov et al. 2023; label smoothing, Mitchell 2023 (cDPO); hinge, Zhao et al. 2023
// (SLiC); IPO, Azar et al. 2023, with means over tokens as in TRL.
PairLosses dpo_losses(const ScoredPairs& pairs, const PreferenceConfig& config);

// -log sigmoid(chosen - rejected) + center_coef (chosen + rejected)^2 of the rewards.
// Throws: std::invalid_argument for an odd number of scores.
// Source: Bradley and Terry 1952; the second term, Eisenstein et al. 2023, as
// center_rewards_coefficient in TRL.
PairLosses bradley_terry_losses(const ScoredPairs& pairs, const PreferenceConfig& config);

// The derivative of the step's loss, a mean over its pairs, towards each learned token's log-prob:
// weights for a backward of their weighted sum. The term of the chosen tokens is a mean over them.
// Shapes: one number a token, in order of the documents.
std::vector<double> token_weights(const ScoredPairs& pairs, const PairLosses& losses,
                                  double sft_coef);

}  // namespace ringside::rl
