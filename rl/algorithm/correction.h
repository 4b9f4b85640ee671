// Correction of the mismatch between the trainer's policy and the policy that sampled, which has
// other numerics or older weights: importance weights from the ratio exp(old - rollout).
// Torch-free.
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"

namespace ringside::rl {

// Statistics of the mismatch, named as verl's rollout_corr/ metrics and computed in every mode.
// Means are over loss tokens unless stated otherwise. Sequences are the samples that have loss
// tokens. A step without loss tokens leaves the defaults below.
struct CorrectionStatistics {
  double kl = 0.0;          // rollout - old: the k1 estimate of KL(rollout policy || old policy)
  double k3_kl = 0.0;       // ratio - 1 - log ratio: its k3 estimate
  double chi2_token = 0.0;  // E[ratio^2] - 1
  double chi2_seq = 0.0;    // the same over sequences, of the products of their ratios
  // Mean of w, where w is the weight; for none and mask, the ratio clamped to low and high.
  double rollout_is_mean = 1.0;
  double rollout_is_eff_sample_size = 1.0;  // E[w]^2 / E[w^2], a share of the tokens
  // Share of tokens (level token) or sequences with a ratio above high.
  double rollout_is_ratio_fraction_high = 0.0;
  double rollout_is_ratio_fraction_low = 0.0;  // below low, or below 1 / high where low is 0
  double rollout_rs_masked_fraction = 0.0;  // share of weights that are 0, rejected ones among them
  double training_ppl = 1.0;                // mean over sequences of exp(-mean old log-prob)
  double rollout_ppl = 1.0;                 // of exp(-mean rollout log-prob)
  double ppl_ratio = 1.0;                   // of the quotient of the two
  double token_mult_prob_error = 1.0;       // exp|old - rollout|, as NeMo-RL
};

struct CorrectionResult {
  std::vector<double> weight;  // [N] that multiplies the policy loss of each token, constant
  std::vector<bool> kept;      // [N] false: rejected, by the mode or by config.reject
  CorrectionStatistics statistics;
};

// Correction weights by config.mode. config.level selects the ratio: of each token (token), its
// product over the sample's loss tokens (sequence), or its geometric mean over them (geometric).
// The log ratio is clamped to [-20, 20], as in verl.
//   none          1
//   tis           clamp(ratio, low, high)
//                 (Yao et al. 2025; verl's rollout_is, TRL's *_truncate)
//   icepop        the ratio within low and high, 0 outside (IcePop, Ling team 2025; TRL's *_mask)
//   mask          1 within low and high, 0 outside. verl's rollout_rs with level token = token_k1,
//                 sequence = seq_sum_k1, geometric = seq_mean_k1; its bounds lower_upper are of
//                 the inverse, sampler / trainer: low = 1 / upper, high = 1 / lower
//   seq_mask_tis  the token's ratio in samples whose geometric mean is within low and high,
//                 0 in other samples (NeMo-RL, OpenRLHF); the ratio is at most token_high, unless
//                 that is 0 (verl's geometric rejection with token weights: 2)
// With config.normalize the weights are divided by their mean, unless that is at most 1e-8: over
// tokens at level token, over sequences at the others (verl's rollout_is_batch_normalize).
// config.reject: a token that fails one of these criteria (rl/config/rejections.h), or is in a
// sequence that does, has weight 0 in any mode. d is clamped to [-20, 20].
//                 (verl's rollout_rs, with weights of rollout_is beside it)
// Rejected are tokens outside of the bounds of mask and seq_mask_tis, and those that reject names;
// tokens to which icepop gives 0 are not.
// What else differs from verl: a rejected token counts in the denominators of loss_weights.h, as in
// AReaL and verl's default trainer, also in a sample's own mean, and it keeps its KL and entropy
// terms, unless drop_rejected() is called; advantages are computed before the rejection. gmpo
// multiplies each token by its own weight, where verl takes the geometric mean of the sample's.
// Reads table.begin, old and rollout.
// Throws: std::invalid_argument for lengths that differ, bounds that admit no ratio, seq_mask_tis
// at another level than token (it uses both), a log-prob that is not finite, or a config.reject
// that checked_rejections() has not returned.
CorrectionResult correction_weights(const StepColumns& table, const CorrectionConfig& config);

// Whether the configuration weighs or rejects anything by the old policy, before the updates.
bool corrects(const CorrectionConfig& config);
// Whether it does so by the current policy, in the loss (rl/step/current_correction.h).
bool corrects_in_loss(const CorrectionConfig& config);

// Sets columns.weight to 0 where columns.kept is 0, so that these tokens have no term of any kind.
// With seq_mean_token_mean the mean of a sample is over the tokens that are left; the other
// denominators stay. (verl) Does nothing if kept is empty.
// Throws: std::invalid_argument when the lengths differ.
void drop_rejected(StepColumns& columns, LossAggregation aggregation);

}  // namespace ringside::rl
