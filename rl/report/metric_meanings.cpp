#include "rl/report/metric_meanings.h"

#include <array>

namespace ringside::rl {
namespace {

struct Meaning {
  std::string_view pattern;  // "*" matches any text; a second one only at the end
  std::string_view text;
};

constexpr std::array kMeanings{
    Meaning{"reward", "Mean total reward of the step's completions."},
    Meaning{"reward_std", "Mean over the groups of the standard deviation of their rewards."},
    Meaning{"rewards/*/mean", "Mean of this reward alone, before its weight."},
    Meaning{"rewards/*/std", "Standard deviation of this reward alone, before its weight."},
    Meaning{"frac_reward_zero_std",
            "Share of groups whose rewards are all equal. They give no gradient."},
    Meaning{"loss", "Loss, as the mean over the step's optimizer steps."},
    Meaning{"policy_loss", "The loss without KL term and entropy bonus."},
    Meaning{"kl", "Estimated KL divergence of the policy from the reference, mean over tokens."},
    Meaning{"distillation/kl",
            "Reverse KL divergence of the policy from the teacher by the sampled tokens."},
    Meaning{"distillation/divergence",
            "algorithm.distillation.divergence from the teacher, mean over tokens."},
    Meaning{"entropy", "Entropy of the policy's next-token distribution, mean over tokens."},
    Meaning{"entropy_coef", "Coefficient of the entropy bonus."},
    Meaning{"grad_norm", "Norm of the gradient before clipping, mean over the optimizer steps."},
    Meaning{"learning_rate", "Learning rate of the last optimizer step."},
    Meaning{"loss_scale", "float16: loss scale of the last optimizer step."},
    Meaning{"skipped_steps", "float16: optimizer steps skipped because gradients overflowed."},
    Meaning{"clip_ratio/*", "Share of tokens whose probability ratio left the clipping range."},
    Meaning{"opsm_clipfrac", "Share of tokens of sequences masked as off-policy."},
    Meaning{"actor/ppo_kl", "KL divergence of the policy from itself before the step."},
    Meaning{"actor/kl_coef", "Coefficient of the KL term."},
    Meaning{"critic/advantages/*", "Advantages of the step's loss tokens."},
    Meaning{"critic/values/*", "Values that the critic predicts."},
    Meaning{"critic/returns/*", "Returns that the critic learns."},
    Meaning{"critic/vf_loss", "Loss of the critic."},
    Meaning{"critic/vf_clipfrac", "Share of tokens whose value left the clipping range."},
    Meaning{"critic/vf_explained_var",
            "Share of the returns' variance that the values explain; 1 is best."},
    Meaning{"critic/grad_norm", "Norm of the critic's gradient before clipping."},
    Meaning{"critic/lr", "Learning rate of the critic."},
    Meaning{"critic/kl", "KL divergence that was subtracted from rewards or advantages."},
    Meaning{"sampling/sampling_logp_difference/*",
            "Absolute difference between the sampler's and the trainer's log-probs of a token."},
    Meaning{"token_mult_prob_error",
            "Mean of exp(|difference of the sampler's and the trainer's log-probs|); 1 is exact."},
    Meaning{"rollout_corr/kl", "KL divergence of the trainer from the sampler, mean over tokens."},
    Meaning{"rollout_corr/k3_kl", "The same by the k3 estimate, which is never negative."},
    Meaning{"rollout_corr/chi2_*", "Chi-square divergence between trainer and sampler."},
    Meaning{"rollout_corr/rollout_is_mean", "Mean importance weight, trainer over sampler."},
    Meaning{"rollout_corr/rollout_is_eff_sample_size",
            "Effective share of the tokens under the importance weights; 1 if all weigh the same."},
    Meaning{"rollout_corr/rollout_is_ratio_fraction_*",
            "Share of importance weights beyond the bound."},
    Meaning{"rollout_corr/rollout_rs_masked_fraction",
            "Share of tokens that rejection left out of the loss."},
    Meaning{"rollout_corr/*ppl*", "Perplexity of the completions under trainer or sampler."},
    Meaning{"router/changed_routes",
            "Share of replayed choices of experts that the router would not make now."},
    Meaning{"experts/load_max", "Tokens of the fullest expert over the mean."},
    Meaning{"experts/unused", "Experts without a token."},
    Meaning{"mtp/loss",
            "Mean cross-entropy of the layer that predicts a further token, without its factor."},
    Meaning{"experts/aux_loss", "Load-balancing loss of the routers."},
    Meaning{"completions/*_length", "Tokens of a completion."},
    Meaning{"completions/clipped_ratio",
            "Share of completions cut by rollout.max_completion_tokens."},
    Meaning{"response/aborted_ratio",
            "Share of completions that failed or have no score. They teach nothing."},
    Meaning{"num_turns/mean", "Turns of a completion."},
    Meaning{"num_tokens", "Tokens of the step's documents."},
    Meaning{"sft/documents", "Documents of the step."},
    Meaning{"sft/overlong", "Documents of the step that were longer than data.max_length."},
    Meaning{"rewards/chosen",
            "Mean implicit reward of the chosen completions: beta (log-prob - "
            "reference)."},
    Meaning{"rewards/rejected", "The same of the rejected ones."},
    Meaning{"rewards/accuracies", "Share of pairs whose chosen reward is above the rejected one."},
    Meaning{"rewards/margins", "Mean of chosen - rejected reward."},
    Meaning{"logps/chosen", "Mean log-prob of a chosen completion."},
    Meaning{"logps/rejected", "Mean log-prob of a rejected completion."},
    Meaning{"accuracy", "Share of pairs whose chosen document has the higher reward."},
    Meaning{"margin", "Mean of chosen - rejected reward of the reward model."},
    Meaning{"min_reward", "Lowest reward of the step's documents."},
    Meaning{"mean_reward", "Mean reward of the step's documents."},
    Meaning{"max_reward", "Highest reward of the step's documents."},
    Meaning{"preferences/pairs", "Pairs of the step."},
    Meaning{"preferences/overlong",
            "Pairs of the step with a document longer than data.max_length."},
    Meaning{"eval_reward", "Mean reward on data.eval."},
    Meaning{"eval_loss",
            "Mean loss of the learned tokens of data.sft_eval, or of the pairs of "
            "data.preferences_eval."},
    Meaning{"eval/*accura*", "Share of held-out pairs whose chosen reward is the higher one."},
    Meaning{"eval/*pass@*", "Share of held-out prompts with at least one passing completion of k."},
    Meaning{"eval/*reward_ci95", "Half the 95 % interval of the mean reward."},
    Meaning{"eval/*reward", "Mean reward on a held-out set."},
    Meaning{"eval/*loss", "Mean loss on a held-out set."},
    Meaning{"eval/*length", "Mean tokens of a held-out completion."},
    Meaning{"eval/*truncated", "Share of held-out completions cut by length."},
    Meaning{"staleness/*",
            "Versions between the weights that sampled a token and those of the step."},
    Meaning{"sp/prefix_saving", "Share of tokens saved by shared prefixes."},
    Meaning{"sp/pair_saving", "Share of attended pairs saved by shared prefixes."},
    Meaning{"sp/bytes_*", "Bytes that attention sends between ranks."},
    Meaning{"sp/balance_*", "The fullest ring rank over the mean; 1 is balanced."},
    Meaning{"curriculum/*", "Prompts in each pool of data.curriculum, by their last group."},
    Meaning{"rollouts/*", "Rollouts since the trainer started."},
    Meaning{"bridge/workers", "Rollout workers that are ready."},
    Meaning{
        "bridge/lost_workers",
        "Workers whose connection was lost since the trainer started, restarted ones included."},
    Meaning{"bridge/left_workers", "Workers that said goodbye since the trainer started."},
    Meaning{"bridge/reassigned", "Samples taken from workers that did not answer in time."},
    Meaning{"bridge/*", "Messages and bytes of the bridge since the trainer started."},
    Meaning{"weights/*", "Weights sent to workers since the trainer started."},
    Meaning{"alarm/*", "1 while rewards or log-probs look wrong; the warnings say why."},
    Meaning{"weight_version", "Version of the weights after the step."},
    Meaning{"tokens_per_s", "num_tokens over step_time."},
    Meaning{"step_time", "Seconds of the step on rank 0."},
    Meaning{"time/*", "Seconds of this stage of the step on rank 0."},
};

bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    return pattern == name;
  }
  const std::string_view begin = pattern.substr(0, star), rest = pattern.substr(star + 1);
  if (!name.starts_with(begin)) {
    return false;
  }
  if (rest.empty()) {
    return true;
  }
  const std::size_t second = rest.find('*');
  if (second == std::string_view::npos) {
    return name.size() >= begin.size() + rest.size() && name.ends_with(rest);
  }
  return name.find(rest.substr(0, second), begin.size()) != std::string_view::npos;
}

}  // namespace

std::string_view metric_meaning(std::string_view name) {
  for (const Meaning& meaning : kMeanings) {
    if (matches(meaning.pattern, name)) {
      return meaning.text;
    }
  }
  return {};
}

}  // namespace ringside::rl
