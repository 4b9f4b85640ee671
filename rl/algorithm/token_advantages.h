// Advantage of every loss token from a step's rewards and log-probs. Every rank computes the same
// from the same table. Torch-free.
// Shapes: B = samples of the step, in groups of group_size consecutive ones; N = loss tokens of the
// step; R = rewards.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/algorithm/step_columns.h"
#include "rl/config/config.h"

namespace ringside::rl {

// A reward within a sample, at the last token of a turn.
struct TurnReward {
  int64_t sample = 0;
  // Index into the table, one of the sample's tokens. Ignored if the sample has no loss token.
  int64_t token = 0;
  double value = 0.0;
};

struct SampleRewards {
  std::vector<std::string> names;            // [R]
  std::vector<double> weight;                // [R]
  std::vector<std::vector<double>> by_name;  // [R][B] before weights
  std::vector<double> total;      // [B] their weighted sum, and what shape_rewards makes of it
  std::vector<TurnReward> turns;  // in addition to total, in any order
  // [B] false: the sample failed and has no score, so that no statistic counts it; empty = all true
  std::vector<bool> scored{};
  // [B] for estimator remax: the reward of the greedy completion of the sample's prompt, shaped;
  // otherwise empty
  std::vector<double> baseline{};
};

// Shaped rewards: total becomes clip(scale * total, -clip, clip) + overlong_factor *
// overlong_penalty(completion_tokens) (length_penalty.h). Each weight is multiplied by scale. The
// penalty is added as a reward "overlong_penalty" of weight overlong_factor, so that total stays
// the weighted sum unless it was clipped. turns are unchanged. completion_tokens: [B]; may be empty
// if overlong_buffer_tokens is 0.
// Throws: std::invalid_argument when lengths differ.
// Source: DAPO, Yu et al. 2025, eq. 13.
SampleRewards shape_rewards(SampleRewards rewards, std::span<const int64_t> completion_tokens,
                            int64_t max_completion_tokens, const RewardShapingConfig& config);

// The value of a KL estimate of d = log-prob - other log-prob (Schulman 2020). X_straight has the
// value of X. k3_score and k3_unbiased have the value of k3: for k3_unbiased the policy is the one
// its ratio is taken against, so r = 1.
double kl_value(KlEstimator estimator, double d);

// The same within config.k3_bound and config.kl_bound, as kl_estimate() of policy_objective.h has
// it.
double bounded_kl_value(const AlgorithmConfig& config, double d);

struct StepAdvantages {
  std::vector<double> advantage;     // [N]
  std::vector<double> returns;       // [N] what the critic learns, of gae; empty otherwise
  std::vector<double> sample_score;  // [B] total + turn rewards, before any KL
  // Mean of the KL that was subtracted, before kl_coef: over tokens, or with kl_average samples
  // over the samples that have a score (0 for one without loss tokens), of their mean, as verl's
  // apply_kl_penalty; 0 with kl_in loss.
  double kl = 0.0;
};

// Advantages by config.advantage.estimator:
//   group_mean, rloo, pass_at_k, max_rl, opo, gdpo (advantages.h)
//              one value per sample, given to each of its tokens. Turn rewards are added to the
//              sample's total; for gdpo they (and the KL of kl_in reward) are one more reward, of
//              weight 1.
//   reinforce  discounted returns-to-go of token rewards: G_t = r_t + gamma G_t+1
//              (Williams 1992; REINFORCE++, Hu et al. 2025)
//   remax      returns-to-go without a discount - rewards.baseline (Li et al. 2023; verl's remax)
//   optimal_token_baseline
//              the same as reinforce minus a baseline of each token (token_baseline.h). A group of
//              equal rewards has advantages of about 0, not exactly
//   gae        delta_t = r_t + gamma V_t+1 - V_t, A_t = delta_t + gamma lambda A_t+1
//              (Schulman et al. 2015), returns = A + V before whitening
//   given      table.given unchanged: advantages that came with the rollouts. Rewards, if there are
//              any, are used for metrics only.
// For reinforce, remax, optimal_token_baseline and gae the sample's total is the reward of its last
// loss token, and a turn's reward is that of the turn's token. Time runs over the sample's loss
// tokens in order; tokens of the environment between turns pass the next value and advantage
// through, as in verl. A sample without a loss token still counts in its group's statistics. KL,
// with d = old - reference, or old - rollout by kl_to:
//   kl_in loss       none here
//   kl_in reward     -kl_coef kl_t is a reward of token t (Ziegler et al. 2019). Estimators with
//                    one value per sample add the sum to the sample's total before the group's
//                    statistics (verl). Rejected with given, which uses no rewards.
//   kl_in advantage  the same for these four. Otherwise, after the
//   estimator,
//                    A_t -= kl_coef sum_{u >= t} gamma^(u - t) kl_u (OpenRLHF, AReaL)
// Whitening comes last: (x - mean) / sqrt(var + whiten_eps), var over n - 1 with
// advantage.unbiased, otherwise n:
// With whiten_eps_in std: (x - mean) / (sqrt(var) + whiten_eps) (AReaL).
//   tokens     statistics over all loss tokens of the step (verl's masked_whiten)
//   sequences  statistics over the mean advantages of the samples that have loss tokens
// Numbers that are all equal are not scaled: their mean is subtracted.
// With a teacher and algorithm.distillation.over sampled_token, behind all of that, so that what
// the teacher says is not whitened: A_t -= coef (old_t - teacher_t), the reverse KL of the token's
// policy to the teacher by its sampled token (Lu et al. 2025, On-policy distillation; verl's k1
// with a policy gradient).
// kl_coef: current value of the coefficient.
// Throws: std::invalid_argument naming the lengths or the sample: a table that is not consistent,
// no value for gae, no baseline for remax, no squared probabilities for optimal_token_baseline, no
// advantages for given or kl_in reward with it, no reference for a KL, no teacher's log-probs, a
// turn reward outside its sample, a number that is not finite, gdpo with reward.clip (gdpo does not
// use the clipped total); and as advantages.h.
StepAdvantages step_advantages(const StepColumns& table, const SampleRewards& rewards,
                               int64_t group_size, const AlgorithmConfig& config, double kl_coef);

}  // namespace ringside::rl
