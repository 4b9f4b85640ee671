// From a step's rewards and log-probs to the advantage of every loss token. Pure functions,
// torch-free, thread-safe; every rank computes the same from the same table. Sizes: B = samples of
// the step, in groups of group_size consecutive ones; N = loss tokens of the step; R = rewards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/algorithm/step_columns.h"
#include "rl/config/config.h"

namespace ringside::rl {

// A reward given in the course of a sample, at the last token of a turn.
struct TurnReward {
  int64_t sample = 0;
  int64_t token = 0;  // index into the table, one of the sample's; not looked at when the sample
                      // has no loss token
  double value = 0.0;
};

struct SampleRewards {
  std::vector<std::string> names;            // [R]
  std::vector<double> weight;                // [R]
  std::vector<std::vector<double>> by_name;  // [R][B] before weights
  std::vector<double> total;      // [B] their weighted sum, and what shape_rewards makes of it
  std::vector<TurnReward> turns;  // in addition to total, in any order
};

// total becomes clip(scale * total, -clip, clip) + overlong_factor *
// overlong_penalty(completion_tokens) (length_penalty.h; DAPO, Yu et al. 2025, eq. 13). Each weight
// is multiplied by scale, and the penalty is added as a reward "overlong_penalty" of weight
// overlong_factor, so that total stays the weighted sum unless it was clipped. turns stay as they
// are. completion_tokens: [B], may be empty when overlong_buffer_tokens is 0. Throws
// std::invalid_argument when lengths differ.
SampleRewards shape_rewards(SampleRewards rewards, std::span<const int64_t> completion_tokens,
                            int64_t max_completion_tokens, const RewardShapingConfig& config);

// The value of a KL estimate of d = log-prob - other log-prob (Schulman 2020). X_straight and
// k3_score have the value of X and k3; k3_unbiased has k3's, since the policy is the one that its
// ratio is taken against.
double kl_value(KlEstimator estimator, double d);

struct StepAdvantages {
  std::vector<double> advantage;     // [N]
  std::vector<double> returns;       // [N] what the critic learns, of gae; empty otherwise
  std::vector<double> sample_score;  // [B] total + turn rewards, before any KL
  double kl =
      0.0;  // mean over tokens of the KL that was taken off, before kl_coef; 0 with kl_in loss
};

// Advantages by config.advantage.estimator:
//   grpo, rloo, pass_at_k, max_rl, gdpo (advantages.h)  one number a sample, given to each of its
//   tokens. Turn rewards join the
//       sample's total; for gdpo they (and the KL of kl_in reward) are one more reward, of
//       weight 1.
//   reinforce  discounted returns-to-go of token rewards: G_t = r_t + gamma G_t+1 (Williams 1992;
//   REINFORCE++, Hu et al. 2025) gae        delta_t = r_t + gamma V_t+1 - V_t, A_t = delta_t +
//   gamma lambda A_t+1 (Schulman et al. 2015), returns = A + V
//       before whitening
//   given      table.given as it is: advantages that came with the rollouts. Rewards, where there
//   are any, only count in figures
// For reinforce and gae the total is the reward of the sample's last loss token and a turn's reward
// that of its token; time runs over the sample's loss tokens in order, so tokens of the environment
// between turns carry the next value and advantage through, as in verl. A sample without a loss
// token counts in its group's statistics all the same. KL, with d = old - reference, or old -
// rollout by kl_to:
//   kl_in loss       nothing is done here
//   kl_in reward     -kl_coef kl_t is a reward of token t (Ziegler et al. 2019); estimators of one
//   number a sample take the sum
//       into the sample's total, before the group's statistics (verl); refused with given, which is
//       made of no reward
//   kl_in advantage  the same for reinforce and gae; otherwise, after the estimator, A_t -= kl_coef
//   sum_{u >= t}
//       gamma^(u - t) kl_u (OpenRLHF, AReaL)
// Whitening comes last: (x - mean) / sqrt(var + whiten_eps), var over n - 1 with
// advantage.unbiased, otherwise n:
//   tokens     statistics over all loss tokens of the step (verl's masked_whiten)
//   sequences  over the mean advantages of the samples that have loss tokens
// kl_coef is the present value of the coefficient. Throws std::invalid_argument naming lengths or
// the sample: a table that is not consistent, no value for gae, no advantages for given or kl_in
// reward with it, no reference for a KL, a turn reward outside its sample, a number that is not
// finite, gdpo with reward.clip (the clipped total is not what it adds up); and as advantages.h.
StepAdvantages step_advantages(const StepColumns& table, const SampleRewards& rewards,
                               int64_t group_size, const AlgorithmConfig& config, double kl_coef);

}  // namespace ringside::rl
