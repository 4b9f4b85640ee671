#include "rl/config/preset_tables.h"

namespace ringside::rl {

// TRL 1.16.0. A loss type of its own name sets the aggregation stated there; epsilon_high None
// means epsilon.
std::vector<Preset> trl_presets() {
  return {
      // The defaults of GRPOConfig. Its loss_type "dapo" divides by the completion tokens of the
      // whole batch over all processes, which is token_mean here. Its correction of vLLM's
      // log-probs (use_vllm, off by default) is algorithm.correction.{mode: icepop, level:
      // sequence, high: 3}.
      {"trl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.kl_estimator", "k3_unbiased"},  // use_bias_correction_kl
        {"algorithm.loss_aggregation", "token_mean"},
        {"algorithm.advantage.eps", "1e-4"},
        {"algorithm.advantage.unbiased", "true"},
        {"algorithm.mask_truncated", "false"},
        {"rollout.group_size", "8"},
        {"rollout.max_completion_tokens", "512"},
        {"rollout.temperature", "1.0"},
        {"rollout.top_p", "1.0"},
        {"rollout.top_k", "0"},
        {"optimizer.learning_rate", "1e-6"},
        {"optimizer.lr_schedule", "linear"},
        {"optimizer.warmup_steps", "0"},
        {"optimizer.beta1", "0.9"},
        {"optimizer.beta2", "0.999"},
        {"optimizer.eps", "1e-8"},
        {"optimizer.weight_decay", "0.0"},
        {"optimizer.max_grad_norm", "1.0"}}},
      {"trl_grpo", {"trl"}, {{"algorithm.loss_aggregation", "seq_mean_token_mean"}}},
      {"trl_bnpo", {"trl"}, {{"algorithm.loss_aggregation", "micro_batch_token_mean"}}},
      // The loss type alone; TRL leaves its scale_rewards at "group".
      {"trl_dr_grpo", {"trl"}, {{"algorithm.loss_aggregation", "constant"}}},
      // clamp(max = epsilon_high), absolute, and epsilon_high is 0.2 unless set: TRL's
      // documentation advises 5.
      {"trl_cispo",
       {"trl"},
       {{"algorithm.loss", "cispo"},
        {"algorithm.cispo.bounds", "absolute"},
        {"algorithm.clip_low", "0.0"},
        {"algorithm.clip_high", "0.2"}}},
      {"trl_sapo",
       {"trl"},
       {{"algorithm.loss", "sapo"},
        {"algorithm.sapo.tau_positive", "1.0"},
        {"algorithm.sapo.tau_negative", "1.05"},
        {"algorithm.loss_aggregation", "seq_mean_token_mean"}}},
      // importance_sampling_level "sequence" with the epsilons of TRL's page on GSPO.
      {"trl_gspo",
       {"trl_grpo"},
       {{"algorithm.importance_level", "sequence"},
        {"algorithm.clip_low", "3e-4"},
        {"algorithm.clip_high", "4e-4"}}},
  };
}

// Settings of other systems for GRPO. Each entry names its version and whether it is a default or
// an example.
std::vector<Preset> system_presets() {
  return {
      // verl 0.9.1, defaults of ppo_trainer, whose adv_estimator is gae there, with adv_estimator
      // grpo: dual clip always on, no KL term unless switched on (k3 within 10), the entropy
      // summed like the loss, an adaptive coefficient by the mean over samples, decay of all
      // parameters. Its loss_mode sapo always means by samples: with loss sapo set
      // loss_aggregation seq_mean_token_mean.
      {"verl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.ppo_clip.dual_clip", "3.0"},
        {"algorithm.dppo.ratio_bound", "3.0"},  // clip_ratio_c, as dual_clip
        {"algorithm.k3_bound", "10.0"},
        {"algorithm.kl_average", "samples"},
        {"algorithm.entropy_aggregation", "loss"},
        {"algorithm.advantage.eps", "1e-6"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"optimizer.learning_rate", "1e-6"},
        {"optimizer.weight_decay", "0.01"},
        {"optimizer.weight_decay_of", "all"}}},
      // OpenRLHF 0.11.2, defaults with advantage_estimator group_norm: k1 penalty within 10 taken
      // off each token's return after the group statistics.
      {"openrlhf",
       {"grpo"},
       {{"algorithm.kl_coef", "0.01"},
        {"algorithm.kl_estimator", "k1"},
        {"algorithm.kl_bound", "10.0"},
        {"algorithm.kl_in", "advantage"},
        {"algorithm.advantage.eps", "1e-9"},
        {"algorithm.loss_aggregation", "token_mean"}}},
      // NeMo-RL 0.7.0, defaults of its GRPO recipe: mean and standard deviation of the others, 32
      // prompts x 16.
      {"nemo_rl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.01"},
        {"algorithm.kl_estimator", "k3_score"},
        {"algorithm.advantage.estimator", "rloo"},
        {"algorithm.advantage.std", "leave_one_out"},
        {"algorithm.advantage.eps", "1e-6"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"rollout.prompts_per_step", "32"},
        {"rollout.group_size", "16"}}},
      // slime 0.3.1, defaults with advantage_estimator grpo: mean over each sample's tokens.
      {"slime", {"grpo"}, {{"algorithm.kl_coef", "0.0"}, {"algorithm.advantage.eps", "1e-6"}}},
      // SkyRL, defaults of its trainer configuration (commit 0012761) with advantage_estimator
      // grpo.
      {"skyrl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.001"},
        {"algorithm.kl_estimator", "k3"},
        {"algorithm.advantage.eps", "1e-6"},
        {"algorithm.loss_aggregation", "token_mean"}}},
      // ROLL (commit 090ac94), defaults with adv_estimator grpo: means of sequence means, no dual
      // clip, no KL in the loss.
      {"roll", {"grpo"}, {{"algorithm.kl_coef", "0.0"}, {"algorithm.advantage.eps", "1e-6"}}},
  };
}

// The same of systems that train on rollouts of earlier versions.
std::vector<Preset> asynchronous_system_presets() {
  return {
      // AReaL 1.0.4, its GRPO example: rewards clipped at 20 and normalised by group, advantages by
      // batch with 1e-5 added to the standard deviation, clip 0.4, decoupled objective (the ratio
      // is taken against recomputed log-probs), two versions of staleness.
      {"areal",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.clip_low", "0.4"},
        {"algorithm.clip_high", "0.4"},
        {"algorithm.reward.clip", "20.0"},
        {"algorithm.advantage.eps", "1e-5"},
        {"algorithm.advantage.unbiased", "true"},
        {"algorithm.advantage.whiten", "tokens"},
        {"algorithm.advantage.whiten_eps", "1e-5"},
        {"algorithm.advantage.whiten_eps_in", "std"},
        {"algorithm.kl_bound", "10.0"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"algorithm.old_logprobs", "recompute"},
        {"algorithm.correction.mode", "icepop"},  // behav_imp_weight_cap
        {"algorithm.correction.level", "token"},
        {"algorithm.correction.high", "5.0"},
        {"algorithm.max_staleness", "2"}}},
      // PipelineRL (commit 005a1f1), defaults of its RL configuration: less the mean of the others
      // over the whole group's standard deviation, summed tokens over the batch size, ratio against
      // the behaviour policy.
      {"pipeline_rl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.1"},
        {"algorithm.kl_estimator", "k3"},
        {"algorithm.advantage.estimator", "rloo"},
        {"algorithm.advantage.std", "group"},
        {"algorithm.advantage.eps", "1e-4"},
        {"algorithm.loss_aggregation", "seq_mean_token_sum"},
        {"algorithm.old_logprobs", "rollout"}}},
      // prime-rl 0.8.1, defaults: total-variation mask at 0.2, rewards less their mean, 1e-3
      // log^2(pi / mu) towards the sampling policy, ratio against it, up to 8 versions of
      // staleness.
      {"prime_rl",
       {"grpo"},
       {{"algorithm.loss", "dppo_tv"},
        {"algorithm.clip_low", "0.2"},
        {"algorithm.clip_high", "0.2"},
        {"algorithm.kl_coef", "2e-3"},  // k2 is half of log^2
        {"algorithm.kl_estimator", "k2"},
        {"algorithm.kl_to", "rollout"},
        {"algorithm.advantage.std", "none"},
        {"algorithm.loss_aggregation", "token_mean"},
        {"algorithm.old_logprobs", "rollout"},
        {"algorithm.max_staleness", "8"}}},
  };
}

}  // namespace ringside::rl
