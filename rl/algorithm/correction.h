// Correction of what the rollout engine's numerics or older weights did to the samples: weights
// from the ratio of the trainer's policy to the one that sampled, exp(old - rollout). Pure
// function, torch-free, thread-safe.
#pragma once

#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"

namespace ringside::rl {

// Named as verl's rollout_corr/ metrics, computed in every mode. Means are over loss tokens unless
// said otherwise; sequences are the samples that have some. A step without loss tokens leaves the
// values below.
struct CorrectionStatistics {
  double kl = 0.0;          // rollout - old: the k1 estimate of KL(rollout policy || old policy)
  double k3_kl = 0.0;       // ratio - 1 - log ratio: its k3 estimate
  double chi2_token = 0.0;  // E[ratio^2] - 1
  double chi2_seq = 0.0;    // the same over sequences, of the products of their ratios
  double rollout_is_mean =
      1.0;  // of w: the weight; for none and mask the ratio clamped to low and high
  double rollout_is_eff_sample_size = 1.0;  // E[w]^2 / E[w^2], a share of the tokens
  double rollout_is_ratio_fraction_high =
      0.0;  // share of tokens (level token) or sequences with a ratio above high
  double rollout_is_ratio_fraction_low = 0.0;  // below low, or below 1 / high where low is 0
  double rollout_rs_masked_fraction = 0.0;     // share of weights that are 0
  double training_ppl = 1.0;                   // mean over sequences of exp(-mean old log-prob)
  double rollout_ppl = 1.0;                    // of exp(-mean rollout log-prob)
  double ppl_ratio = 1.0;                      // of the quotient of the two
  double token_mult_prob_error = 1.0;          // exp|old - rollout|, as NeMo-RL
};

struct CorrectionResult {
  std::vector<double> weight;  // [N] that multiplies the policy loss of each token, constant
  CorrectionStatistics statistics;
};

// weight by config.mode, of the ratio at config.level: each token's (token), the product over its
// sample's loss tokens (sequence) or their geometric mean (geometric); the logarithm of the ratio
// is kept within -20 and 20 as verl does.
//   none          1
//   tis           clamp(ratio, low, high)                       (Yao et al. 2025; verl's
//   rollout_is, TRL's *_truncate) icepop        the ratio within low and high, 0 outside (IcePop,
//   Ling team 2025; TRL's *_mask) mask          1 within low and high, 0 outside (verl's
//   rollout_rs) seq_mask_tis  the token's ratio in samples whose geometric mean is within low and
//   high, 0 in others   (NeMo-RL, OpenRLHF)
// Reads table.begin, old and rollout. Throws std::invalid_argument for lengths that differ, bounds
// that hold no ratio, seq_mask_tis at another level than token (it uses both), or a log-prob that
// is not finite.
CorrectionResult correction_weights(const StepColumns& table, const CorrectionConfig& config);

}  // namespace ringside::rl
