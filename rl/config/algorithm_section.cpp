#include <set>

#include "rl/config/losses_in_words.h"
#include "rl/config/presets.h"
#include "rl/config/rejections.h"
#include "rl/config/sections.h"
#include "rl/config/teacher.h"

namespace ringside::rl {
namespace {

std::string loss_sentence() {
  std::string text;
  for (const PolicyLoss* loss : policy_losses()) {
    text.append(text.empty() ? "" : "; ").append(loss->name).append(" = ").append(loss->sentence);
  }
  return text;
}

// What the losses clip: "ppo_clip, cispo: the ratio ... gmpo: ...".
std::string clip_sentence(std::string_view PolicyLoss::*of_loss) {
  std::string text;
  std::set<std::string_view> said;
  for (const PolicyLoss* loss : policy_losses()) {
    const std::string_view sentence = loss->*of_loss;
    if (!sentence.empty() && said.insert(sentence).second) {
      text.append(text.empty() ? "" : ". ")
          .append(in_words(
              losses_that([&](const PolicyLoss& other) { return other.*of_loss == sentence; }),
              ", "))
          .append(": ")
          .append(sentence);
    }
  }
  return text;
}

void add_kl(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.choice(
      "algorithm.task", algorithm.task,
      "rl = reinforcement learning, any algorithm below; sft = supervised fine-tuning on data.sft; "
      "dpo = direct preference optimization on data.preferences; reward_model = a value head on "
      "the "
      "last token, trained on them by Bradley-Terry");
  fields.choice(
      "algorithm.preset", algorithm.preset, preset_names(),
      "named set of values for other keys; recipes override it; see `ringside check --presets`");
  fields.real("algorithm.kl_coef", algorithm.kl_coef, at_least(0),
              "weight of the KL term to the reference; 0 = no reference model");
  fields.choice(
      "algorithm.kl_in", algorithm.kl_in,
      "where it is added: loss, reward of each token, advantage (after group statistics)");
  fields.choice("algorithm.kl_to", algorithm.kl_to,
                "the other policy of the KL term: reference, or rollout = the policy that sampled");
  fields.real("algorithm.kl_bound", algorithm.kl_bound, at_least(0),
              "each token's KL estimate is clamped to -kl_bound and kl_bound, without a gradient "
              "beyond (OpenRLHF, AReaL: 10); 0 = off");
  fields.real("algorithm.k3_bound", algorithm.k3_bound, at_least(0),
              "the same for k3 alone, in each of its forms (verl, NeMo-RL: 10); 0 = off");
  fields.real("algorithm.kl_target", algorithm.kl_target, at_least(0),
              "adapt kl_coef so that the KL stays near this value; 0 = a fixed kl_coef");
  fields.integer("algorithm.kl_horizon", algorithm.kl_horizon, at_least(1),
                 "how many samples an adaptive kl_coef takes to change; larger = slower");
  fields.choice("algorithm.kl_average", algorithm.kl_average,
                "kl_in reward, advantage: an adaptive kl_coef looks at the mean over tokens, or "
                "samples = the mean over samples of their mean (verl)");
  fields.integer("algorithm.reference_update_every", algorithm.reference_update_every, at_least(0),
                 "steps between updates of the reference by the policy; 0 = never");
  fields.real("algorithm.reference_mixup", algorithm.reference_mixup, between(0, 1),
              "in such an update: reference = mixup x policy + (1 - mixup) x reference");
}

void add_entropy_and_loss(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.real(
      "algorithm.entropy_coef", algorithm.entropy_coef, at_least(0),
      "weight of the entropy bonus: the loss falls by this x the entropy of the loss tokens");
  fields.choice("algorithm.entropy_aggregation", algorithm.entropy_aggregation,
                "of the bonus: tokens = mean over the loss tokens, loss = as loss_aggregation "
                "(verl)");
  fields.real("algorithm.entropy_target", algorithm.entropy_target, at_least(0),
              "adapt entropy_coef: at or below this entropy the bonus acts and grows, above it is "
              "off and shrinks; 0 = fixed");
  fields.real("algorithm.entropy_step", algorithm.entropy_step, at_least(0),
              "by how much an adaptive entropy_coef grows or shrinks per optimizer step");
  fields.choice("algorithm.kl_estimator", algorithm.kl_estimator,
                "with d = log-prob - reference: k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d "
                "- 1. X_straight = value of X, gradient of k2; k3_score = k3 with its "
                "score-function gradient (NeMo-RL); k3_unbiased = k3 exp(log-prob - old) (TRL)");
  fields.choice("algorithm.loss", algorithm.loss,
                losses_that([](const PolicyLoss&) { return true; }), loss_sentence());
  fields.choice(
      "algorithm.importance_level", algorithm.importance_level,
      "probability ratio per token, or sequence = the geometric mean over the sequence (GSPO)");
  fields.real("algorithm.clip_low", algorithm.clip_low, between(0, 1),
              clip_sentence(&PolicyLoss::clip_low));
  fields.real("algorithm.clip_high", algorithm.clip_high, at_least(0),
              clip_sentence(&PolicyLoss::clip_high));
}

// Keys of the losses, in a block of each, as the losses' files declare them.
void add_loss_blocks(FieldList& fields, AlgorithmConfig& algorithm) {
  std::set<std::string_view> added;
  for (const PolicyLoss* loss : policy_losses()) {
    if (loss->keys.empty() || !added.insert(loss->block()).second) {
      continue;
    }
    const std::string block(loss->block());
    const auto readers = losses_of_block(block);
    fields.section("algorithm." + block,
                   (readers.size() > 1 ? "losses " : "loss ") + in_words(readers, " and "));
    for (const LossKey& key : loss->keys) {
      const std::string name = block + "." + std::string(key.name);
      double& value = algorithm.loss_keys.at(name);
      if (key.words.empty()) {
        fields.real("algorithm." + name, value, {key.low, key.high, key.above},
                    std::string(key.sentence));
      } else {
        fields.choice("algorithm." + name, value, key.words, std::string(key.sentence));
      }
    }
  }
}

void add_aggregation(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.choice("algorithm.loss_aggregation", algorithm.loss_aggregation,
                "by global counts: token_mean, token_sum, seq_mean_token_mean, seq_mean_token_sum, "
                "constant; by the counts of each micro-batch: micro_batch_token_mean");
  fields.real(
      "algorithm.loss_divisor", algorithm.loss_divisor, at_least(0),
      "constant: the summed loss is divided by samples x this; 0 = rollout.max_completion_tokens");
}

void add_advantage(FieldList& fields, RewardShapingConfig& reward, AdvantageConfig& advantage) {
  fields.real("algorithm.reward.scale", reward.scale, {},
              "a sample's total reward is multiplied by this");
  fields.real("algorithm.reward.clip", reward.clip, at_least(0),
              "and then clipped to -clip and clip; 0 = off");
  fields.integer(
      "algorithm.reward.overlong_buffer_tokens", reward.overlong_buffer_tokens, at_least(0),
      "DAPO's soft penalty over the last tokens before rollout.max_completion_tokens; 0 = off");
  fields.real("algorithm.reward.overlong_factor", reward.overlong_factor, at_least(0),
              "that penalty falls from 0 to -overlong_factor");
  fields.choice(
      "algorithm.advantage.estimator", advantage.estimator,
      "group_mean = reward - group mean (GRPO), rloo = reward - mean of the others, "
      "reinforce = returns, gdpo, pass_at_k, max_rl, opo = reward - group mean weighted "
      "by the lengths, remax = reward - that of a greedy completion, which is sampled "
      "beside the group, optimal_token_baseline = returns - a baseline of each token, gae "
      "(with a critic), given = advantages that came with the rollouts");
  fields.choice("algorithm.advantage.std", advantage.std,
                "group_mean, rloo, pass_at_k: divide by the standard deviation of group, batch or "
                "leave_one_out; none = do not divide");
  fields.real("algorithm.advantage.eps", advantage.eps, at_least(0),
              "added to the standard deviation");
  fields.flag("algorithm.advantage.unbiased", advantage.unbiased,
              "standard deviation over n - 1 (true) or over n (false)");
  fields.choice("algorithm.advantage.whiten", advantage.whiten,
                "at last: mean 0 and variance 1 over the step's tokens or sequences; none = off");
  fields.real("algorithm.advantage.whiten_eps", advantage.whiten_eps, at_least(0),
              "added to that variance");
  fields.choice("algorithm.advantage.whiten_eps_in", advantage.whiten_eps_in,
                "variance, or std: added to its root (AReaL)");
  fields.real(
      "algorithm.advantage.gamma", advantage.gamma, between(0, 1),
      "discount per token, for estimators reinforce, optimal_token_baseline and gae and for "
      "kl_in: advantage");
  fields.real("algorithm.advantage.lambda", advantage.lambda, between(0, 1),
              "gae: decay of the temporal differences");
  fields.flag(
      "algorithm.advantage.gpg_scale", advantage.gpg_scale,
      "true = multiply by samples / samples whose reward is not 0 (GPG); for estimators that "
      "compare a group's rewards");
}

void add_critic(FieldList& fields, CriticConfig& critic) {
  fields.path("algorithm.critic.model_path", critic.model_path,
              "gae: directory that the value model starts from; \"\" = model.path");
  fields.real("algorithm.critic.learning_rate", critic.learning_rate, between(0, 1),
              "of the critic's optimizer; its other settings are optimizer.*");
  fields.real(
      "algorithm.critic.value_clip", critic.value_clip, at_least(0),
      "a value further than this from its old value gets no gradient to move further; 0 = off");
  fields.integer("algorithm.critic.warmup_steps", critic.warmup_steps, at_least(0),
                 "first steps, in which only the value model learns");
  fields.real("algorithm.critic.max_grad_norm", critic.max_grad_norm, at_least(0),
              "clip the value model's gradient norm to this; 0 = no clipping");
  fields.integer(
      "algorithm.critic.num_iterations", critic.num_iterations, at_least(0),
      "passes of the value model over each step's samples, all before the policy's; 0 = as "
      "algorithm.num_iterations");
  fields.integer("algorithm.critic.num_mini_batches", critic.num_mini_batches, at_least(0),
                 "its optimizer steps per pass; 0 = as train.num_mini_batches");
}

void add_resampling(FieldList& fields, ResamplingConfig& resampling) {
  fields.choice(
      "algorithm.resampling.method", resampling.method,
      {kResamplingMethods.begin(), kResamplingMethods.end()},
      "draw the samples that a step trains on by their scores, with replacement (PF-PPO): "
      "pow = by |score|^power, max_min = the highest and lowest alone, max_random = the "
      "highest 4 times as often; none = each once. Advantages are computed before");
  fields.real("algorithm.resampling.power", resampling.power, at_least(0), "of pow");
}

void add_distillation(FieldList& fields, DistillationConfig& distillation) {
  fields.section("algorithm.distillation", "on-policy distillation, with or without rewards");
  fields.path(
      "algorithm.distillation.teacher", distillation.teacher,
      "directory of a model with the same vocabulary, of any size and architecture, that the "
      "policy learns to be like on its own samples; or the address of a server with OpenAI's API "
      "and prompt_logprobs (vLLM): http://host:port; \"\" = none",
      absolute_teacher);
  fields.path("algorithm.distillation.teachers", distillation.teachers,
              "in place of teacher several by the record's data.source_key: \"math=PATH, "
              "code=http://host:port\"; each judges the completions of its own source",
              absolute_teachers);
  fields.text("algorithm.distillation.server_model", distillation.server_model,
              "servers: name of the model that they are asked for; \"\" = their first");
  fields.path("algorithm.distillation.server_api_key_file", distillation.server_api_key_file,
              "servers: file with their key; \"\" = none");
  fields.integer("algorithm.distillation.server_concurrency", distillation.server_concurrency,
                 between(1, 4096), "servers: requests at a time");
  fields.real("algorithm.distillation.server_timeout_s", distillation.server_timeout_s,
              NumberRange{.low = 0, .high = 1e6, .above = true},
              "servers: seconds until a completion must be judged, with all tries");
  fields.real("algorithm.distillation.coef", distillation.coef, above(0),
              "weight of it beside the rewards. Without rewards: rollout.reward none, or "
              "algorithm.reward.scale 0, which still shows them");
  fields.choice("algorithm.distillation.over", distillation.over,
                "sampled_token = the advantage of each token falls by coef x (log-prob - "
                "teacher's); a loss of "
                "whole distributions: vocabulary, or top_k = the teacher's most likely tokens, and "
                "all others "
                "as one");
  fields.choice(
      "algorithm.distillation.divergence", distillation.divergence,
      "of that loss: reverse_kl = KL(policy || teacher), forward_kl = KL(teacher || "
      "policy), jensen_shannon = mixture x KL(teacher || m) + (1 - mixture) x KL(policy || "
      "m), m = mixture x teacher + (1 - mixture) x policy (GKD)");
  fields.integer("algorithm.distillation.top_k", distillation.top_k, at_least(1),
                 "over top_k: how many tokens");
  fields.real("algorithm.distillation.mixture", distillation.mixture,
              NumberRange{.low = 0, .high = 1, .above = true, .below = true},
              "divergence jensen_shannon: TRL's beta");
}

void add_preference(FieldList& fields, PreferenceConfig& preference) {
  fields.section("algorithm.preference", "tasks dpo and reward_model");
  fields.choice("algorithm.preference.loss", preference.loss,
                "dpo, with d = (log-prob - reference) of chosen - the same of rejected: sigmoid = "
                "-log sigmoid(beta d), hinge = max(0, 1 - beta d), ipo = (d of means over tokens - "
                "1 / (2 beta))^2");
  fields.real("algorithm.preference.beta", preference.beta, above(0),
              "dpo: how close the policy stays to the reference; larger = closer");
  fields.real("algorithm.preference.label_smoothing", preference.label_smoothing,
              NumberRange{.low = 0, .high = 0.5},
              "sigmoid: share of pairs that are expected to be the wrong way round (cDPO)");
  fields.real("algorithm.preference.sft_coef", preference.sft_coef, at_least(0),
              "dpo: weight of the mean negative log-prob of the chosen tokens (RPO); 0 = off");
  fields.real("algorithm.preference.center_coef", preference.center_coef, at_least(0),
              "reward_model: weight of (chosen reward + rejected reward)^2, which keeps rewards "
              "near 0; 0 = off");
}

void add_corrections(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.choice(
      "algorithm.old_logprobs", algorithm.old_logprobs,
      "old policy's log-probs: recompute = forward pass of the trainer, rollout = from the worker");
  fields.choice(
      "algorithm.logprobs_over", algorithm.logprobs_over, {"vocabulary", "kept"},
      "with rollout.top_p or rollout.top_k the policy's log-probs and entropies are over "
      "kept = the tokens that the sampler had left for each token, as the worker recorded "
      "them (DeepSeek-V3.2); a reference is over the whole vocabulary. vocabulary = such "
      "sampling is not trained on");
  fields.choice(
      "algorithm.router_replay", algorithm.router_replay,
      "models with experts; which experts a token uses in the passes of the policy: none = those "
      "that its router chooses, rollout = those that it used when it was sampled, recompute = in "
      "training those of the old policy's pass. The reference chooses by itself");
  fields.choice("algorithm.correction.mode", algorithm.correction.mode,
                "for a trainer that differs from the rollout engine; ratio = exp(old - rollout). "
                "tis = clamp the ratio, icepop = 0 outside the bounds, mask = 1 inside and 0 "
                "outside, seq_mask_tis = the token's ratio, not clamped, and 0 in sequences whose "
                "geometric mean is outside. Rejected tokens keep their KL and entropy terms");
  fields.choice("algorithm.correction.level", algorithm.correction.level,
                "token = each token's ratio, sequence = product over the sequence, geometric = "
                "geometric mean");
  fields.real("algorithm.correction.low", algorithm.correction.low, at_least(0),
              "lower bound of the ratio, which is trainer / sampler. verl's rollout_rs token_k1, "
              "seq_sum_k1 and seq_mean_k1 bound sampler / trainer: low = 1 / its upper bound");
  fields.real("algorithm.correction.high", algorithm.correction.high, above(0),
              "upper bound of the ratio; of those = 1 / the lower bound");
  fields.real("algorithm.correction.token_high", algorithm.correction.token_high, at_least(0),
              "seq_mask_tis: upper bound of the token's ratio (verl's geometric rejection with "
              "token weights: 2); 0 = off");
  fields.text(
      "algorithm.correction.reject", algorithm.correction.reject,
      "criteria that tokens must pass, beside the mode: [{by: seq_mean_k1, low: 0.99, high: "
      "1.01}, {by: token_k2, high: 2}]; verl's names and bounds: token_, seq_sum_ and "
      "seq_mean_k1 to k3, seq_max_k2 and k3. k1 bounds sampler / trainer, low = 1 / high if "
      "it is not set; \"\" = none",
      checked_rejections);
  fields.flag("algorithm.correction.drop_rejected", algorithm.correction.drop_rejected,
              "true = rejected tokens have no KL and entropy terms either, and with "
              "seq_mean_token_mean a sample's mean is over the others (verl)");
  fields.flag("algorithm.correction.normalize", algorithm.correction.normalize,
              "tis, icepop: true = divide the weights by their mean over the step's tokens, or at "
              "the other levels sequences");
  fields.choice("algorithm.correction.ratio_of", algorithm.correction.ratio_of, {"old", "current"},
                "whose log-probs the ratio is of: old policy's, once a step; current = those of "
                "each mini-batch (verl's bypass_mode, with old_logprobs rollout)");
  fields.real(
      "algorithm.correction.opsm_delta", algorithm.correction.opsm_delta, at_least(0),
      "leave out sequences with A < 0 and mean (rollout - current) log-prob above this; 0 = off");
  fields.choice("algorithm.dynamic_sampling", algorithm.dynamic_sampling,
                "groups of equal rewards: none = train on them, drop = no loss, refill = sample "
                "other prompts");
  fields.text("algorithm.dynamic_sampling_by", algorithm.dynamic_sampling_by,
              "by what a group's samples are compared: total = the weighted sum of the rewards, "
              "shaped = what algorithm.reward makes of it, or the name of one reward (verl's acc)");
  fields.integer("algorithm.dynamic_sampling_rounds", algorithm.dynamic_sampling_rounds,
                 at_least(1), "refill: after this many prompts the group is kept as it is");
  fields.integer("algorithm.num_iterations", algorithm.num_iterations, at_least(1),
                 "passes over each step's samples");
  fields.integer(
      "algorithm.max_staleness", algorithm.max_staleness, at_least(0),
      "how many versions old a sample's weights may be; above 0 = asynchronous training");
  fields.flag("algorithm.mask_truncated", algorithm.mask_truncated,
              "true = completions that ended by length get no loss");
}

}  // namespace

void add_algorithm_section(FieldList& fields, AlgorithmConfig& algorithm) {
  add_kl(fields, algorithm);
  add_entropy_and_loss(fields, algorithm);
  add_loss_blocks(fields, algorithm);
  add_aggregation(fields, algorithm);
  add_advantage(fields, algorithm.reward, algorithm.advantage);
  add_critic(fields, algorithm.critic);
  add_distillation(fields, algorithm.distillation);
  add_preference(fields, algorithm.preference);
  add_corrections(fields, algorithm);
  add_resampling(fields, algorithm.resampling);
  fields.often_set("algorithm", {"task", "preset", "loss", "kl_coef", "clip_low", "clip_high",
                                 "loss_aggregation", "importance_level", "max_staleness",
                                 "dynamic_sampling", "router_replay", "mask_truncated"});
  fields.often_set("algorithm.advantage", {"estimator", "std"});
  fields.often_set("algorithm.correction", {"mode"});
  fields.often_set("algorithm.distillation", {"teacher"});
  for (const char* of_server : {"api_key_file", "concurrency", "timeout_s"}) {
    fields.may_change_on_resume(std::string("algorithm.distillation.server_") + of_server);
  }
  fields.often_set("algorithm.preference", {"beta"});
}

}  // namespace ringside::rl
