#include "rl/config/preset_tables.h"

namespace ringside::rl {

// The papers' own settings. Where a paper does not state a value, the key keeps its default and the
// comment says so.

// GRPO and its variants.
std::vector<Preset> grpo_paper_presets() {
  return {
      // Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), section 4.1.1 and 4.2: per-completion
      // means (equation 3), KL coefficient 0.04 with the k3 estimator (equation 4), one update per
      // batch of samples. The paper does not state its clip range; 0.2 is PPO's.
      {"grpo",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.kl_coef", "0.04"},
        {"algorithm.kl_estimator", "k3"},
        {"algorithm.loss", "ppo_clip"},
        {"algorithm.clip_low", "0.2"},
        {"algorithm.clip_high", "0.2"},
        {"algorithm.loss_aggregation", "seq_mean_token_mean"},
        {"algorithm.advantage.estimator", "group_mean"},
        {"algorithm.advantage.std", "group"},
        {"algorithm.num_iterations", "1"}}},
      // Liu et al. 2025 (arXiv 2503.20783): no division by the standard deviation, losses divided
      // by the generation budget, no KL term.
      {"dr_grpo",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.advantage.std", "none"},
        {"algorithm.loss_aggregation", "constant"},
        {"algorithm.loss_divisor", "0.0"}}},
      // Yu et al. 2025 (arXiv 2503.14476), section 4.1: clip-higher 0.2 and 0.28, token mean,
      // groups of one reward replaced, soft overlong punishment over the last 4096 of 20480 tokens,
      // groups of 16, no KL term.
      {"dapo",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.clip_high", "0.28"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"algorithm.dynamic_sampling", "refill"},
        {"algorithm.reward.overlong_buffer_tokens", "4096"},
        {"algorithm.reward.overlong_factor", "1.0"},
        {"rollout.max_completion_tokens", "20480"},
        {"rollout.group_size", "16"},
        {"optimizer.learning_rate", "1e-6"}}},
      // Zheng et al. 2025 (arXiv 2507.18071), section 5.1: ratio of the sequence, clipped at 3e-4
      // and 4e-4, four mini-batches.
      {"gspo",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.importance_level", "sequence"},
        {"algorithm.clip_low", "3e-4"},
        {"algorithm.clip_high", "4e-4"},
        {"train.num_mini_batches", "4"}}},
      // MiniMax-M1 2025 (arXiv 2506.13585): weights clipped from above only, token mean, no KL
      // term. The paper does not state its upper bound; 5 is what ScaleRL (Khatri et al. 2025) and
      // TRL's documentation take.
      {"cispo",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.loss", "cispo"},
        {"algorithm.cispo.bounds", "absolute"},
        {"algorithm.clip_low", "0.0"},
        {"algorithm.clip_high", "5.0"},
        {"algorithm.loss_aggregation", "token_mean"}}},
  };
}

// Papers with estimators of their own: a critic, or REINFORCE against another baseline.
std::vector<Preset> estimator_paper_presets() {
  return {
      // Schulman et al. 2017 as Ouyang et al. 2022 (arXiv 2203.02155), appendix C.4, apply it to
      // language models: KL 0.02 in the reward, clip 0.2 for ratio and value, no discount; lambda
      // 0.95 and whitened advantages as in TRL's PPO.
      {"ppo",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.loss", "ppo_clip"},
        {"algorithm.clip_low", "0.2"},
        {"algorithm.clip_high", "0.2"},
        {"algorithm.kl_coef", "0.02"},
        {"algorithm.kl_estimator", "k1"},
        {"algorithm.kl_in", "reward"},
        {"algorithm.advantage.estimator", "gae"},
        {"algorithm.advantage.gamma", "1.0"},
        {"algorithm.advantage.lambda", "0.95"},
        {"algorithm.advantage.whiten", "tokens"},
        {"algorithm.critic.value_clip", "0.2"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"rollout.group_size", "1"}}},
      // Ahmadian et al. 2024 (arXiv 2402.14740): REINFORCE on whole completions against the mean of
      // the others, k = 4, KL in the reward; 0.05 is TRL's default for its coefficient.
      {"rloo",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.loss", "reinforce"},
        {"algorithm.kl_coef", "0.05"},
        {"algorithm.kl_estimator", "k1"},
        {"algorithm.kl_in", "reward"},
        {"algorithm.advantage.estimator", "rloo"},
        {"algorithm.advantage.std", "none"},
        {"algorithm.loss_aggregation", "seq_mean_token_sum"},
        {"rollout.group_size", "4"}}},
      // Hu et al. 2025 (REINFORCE++, arXiv 2501.03262): returns with the KL in the reward, whitened
      // over the batch, PPO's clip; 0.01 as in OpenRLHF, the authors' system.
      {"reinforce_pp",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.loss", "ppo_clip"},
        {"algorithm.kl_coef", "0.01"},
        {"algorithm.kl_estimator", "k1"},
        {"algorithm.kl_in", "reward"},
        {"algorithm.advantage.estimator", "reinforce"},
        {"algorithm.advantage.gamma", "1.0"},
        {"algorithm.advantage.whiten", "tokens"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"rollout.group_size", "1"}}},
      // Its baseline form: less the group's mean, whitened over the batch, k2 in the loss.
      {"reinforce_pp_baseline",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.loss", "ppo_clip"},
        {"algorithm.kl_coef", "0.01"},
        {"algorithm.kl_estimator", "k2"},
        {"algorithm.advantage.estimator", "group_mean"},
        {"algorithm.advantage.std", "none"},
        {"algorithm.advantage.whiten", "tokens"},
        {"algorithm.loss_aggregation", "token_mean"}}},
  };
}

// A teacher in place of rewards, or beside them.
std::vector<Preset> distillation_paper_presets() {
  return {
      // Lu et al. 2025 (Thinking Machines, On-policy distillation): the advantage of a token is the
      // negative reverse KL to the teacher by the sampled token, not discounted; the policy
      // gradient
      // has the ratio to the sampler's log-probs; four samples a prompt.
      // algorithm.distillation.teacher
      // is the recipe's. Rewards that a recipe adds count against their group's mean.
      {"opd",
       {},
       {{"algorithm.task", "rl"},
        {"algorithm.distillation.over", "sampled_token"},
        {"algorithm.distillation.coef", "1.0"},
        {"algorithm.loss", "ppo_clip"},
        {"algorithm.old_logprobs", "rollout"},
        {"algorithm.kl_coef", "0.0"},
        {"algorithm.advantage.estimator", "group_mean"},
        {"algorithm.advantage.std", "none"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"rollout.reward", "none"},
        {"rollout.group_size", "4"}}},
  };
}

}  // namespace ringside::rl
