#include "tests/rl/config_effects.h"

#include <filesystem>
#include <iterator>

#include "rl/config/batch_arithmetic.h"
#include "rl/config/enums.h"
#include "rl/config/load.h"
#include "rl/data/curriculum.h"
#include "rl/data/prompt_set.h"
#include "rl/rollouts/live_source.h"
#include "rl/rollouts/rollout_admission.h"
#include "rl/setup/model_device.h"
#include "rl/setup/model_setup.h"

namespace fs = std::filesystem;

namespace ringside::test {

Words common() {
  return {"model.path=" + input_file("model"),
          "data.train=" + input_file("train.jsonl"),
          "rollout.group_size=4",
          "rollout.prompts_per_step=2",
          "rollout.max_completion_tokens=12",
          "rollout.max_prompt_tokens=16",
          "train.steps=2",
          "optimizer.learning_rate=0.01",
          "log.progress=lines"};
}

const Words kKl{"algorithm.kl_coef=0.1", "optimizer.beta2=0.9"};
const Words kGae{"algorithm.preset=ppo", "rollout.group_size=4", "algorithm.num_iterations=2",
                 "train.num_mini_batches=2"};
Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

namespace {

const Words kLora{"lora.rank=2"};
Words with_experts() { return {"model.path=" + input_file("experts"), "model.init=random"}; }

// All tokens of positive covariance are chosen.
const Words kClipCov{"algorithm.loss=clip_cov", "algorithm.clip_cov.ratio=1",
                     "algorithm.clip_cov.lb=0", "algorithm.num_iterations=2"};
const Words kKlCov{"algorithm.loss=kl_cov", "algorithm.kl_cov.ratio=1",
                   "algorithm.num_iterations=2"};
const Words kTwice{"algorithm.num_iterations=3"};  // so that ratios leave 1
const Words kVespo{"algorithm.loss=vespo", "algorithm.num_iterations=3"};

std::vector<Effect> penalty_effects() {
  const Words entropy{"algorithm.entropy_coef=0.1"};
  const Words adaptive = with(kKl, {"algorithm.kl_target=0.05", "algorithm.kl_horizon=20"});
  return {
      {"algorithm.task", "sft", [](const rl::Config& c) { return rl::describe_batch(c)[0]; }, {}},
      {"algorithm.preset", "dr_grpo", recorded, {}},
      {"algorithm.kl_coef", "0.5", recorded, {}},
      {"algorithm.kl_in", "advantage", recorded, kKl},
      {"algorithm.kl_to", "rollout", recorded, kKl},
      {"algorithm.kl_bound", "1e-5", recorded,
       with(kKl, {"model.reference_path=" + input_file("reference")})},
      {"algorithm.k3_bound", "1e-5", recorded,
       with(kKl, {"model.reference_path=" + input_file("reference")})},
      {"algorithm.kl_average", "samples", recorded,
       with(kKl, {"model.reference_path=" + input_file("reference"), "algorithm.kl_in=reward"})},
      {"algorithm.kl_target", "0.05", recorded, kKl},
      {"algorithm.kl_horizon", "10", recorded, adaptive},
      {"algorithm.reference_update_every", "1", recorded, kKl},
      {"algorithm.reference_mixup", "0.5", recorded,
       with(kKl, {"algorithm.reference_update_every=1", "train.steps=3"})},
      {"algorithm.entropy_coef", "0.5", recorded, {}},
      {"algorithm.entropy_aggregation", "loss", recorded,
       with(entropy, {"algorithm.loss_aggregation=seq_mean_token_mean"})},
      {"algorithm.entropy_target",
       "20",
       recorded,
       {"algorithm.entropy_step=0.1", "algorithm.entropy_coef=0.1",
        "algorithm.entropy_target=0.001"}},
      {"algorithm.entropy_step", "0.2", recorded,
       with(entropy,
            {"algorithm.entropy_target=20", "algorithm.entropy_step=0.1", "train.steps=3"})},
      {"algorithm.kl_estimator", "abs", recorded,
       with(kKl, {"model.reference_path=" + input_file("reference")})},
  };
}

std::vector<Effect> loss_effects() {
  return {
      {"algorithm.loss", "reinforce", recorded, kTwice},
      {"algorithm.importance_level", "sequence", recorded, kTwice},
      {"algorithm.clip_low", "0.0001", recorded, kTwice},
      {"algorithm.clip_high", "0.0001", recorded, kTwice},
      {"algorithm.ppo_clip.dual_clip", "1.0001", recorded,
       with(kTwice, {"algorithm.clip_high=10"})},
      {"algorithm.ppo_clip.delta", "0.9", recorded, with(kTwice, {"algorithm.clip_high=10"})},
      {"algorithm.cispo.bounds", "absolute", recorded, with(kTwice, {"algorithm.loss=cispo"})},
      {"algorithm.sapo.tau_positive", "5.0", recorded, with(kTwice, {"algorithm.loss=sapo"})},
      {"algorithm.sapo.tau_negative", "5.0", recorded, with(kTwice, {"algorithm.loss=sapo"})},
      {"algorithm.vespo.k_positive", "0.5", recorded, kVespo},
      {"algorithm.vespo.lambda_positive", "0.5", recorded, kVespo},
      {"algorithm.vespo.k_negative", "0.5", recorded, kVespo},
      {"algorithm.vespo.lambda_negative", "0.5", recorded, kVespo},
      {"algorithm.clip_cov.ratio", "0.01", recorded, kClipCov},
      {"algorithm.clip_cov.lb", "4.9", recorded, kClipCov},
      {"algorithm.clip_cov.ub", "0.001", recorded, kClipCov},
      {"algorithm.kl_cov.ratio", "0.01", recorded, kKlCov},
      {"algorithm.kl_cov.kl_coef", "2", recorded, kKlCov},
      {"algorithm.dro.beta", "2", recorded, with(kTwice, {"algorithm.loss=dro"})},
      {"algorithm.dppo.ratio_bound", "0.9", recorded, with(kTwice, {"algorithm.loss=dppo_tv"})},
      {"algorithm.loss_aggregation", "seq_mean_token_mean", recorded, {}},
      {"algorithm.loss_divisor", "7", recorded, {"algorithm.loss_aggregation=constant"}},
  };
}

std::vector<Effect> advantage_effects() {
  const Words rewards{"algorithm.advantage.estimator=reinforce"};
  return {
      {"algorithm.reward.scale", "3", recorded, rewards},
      {"algorithm.reward.clip", "0.25", recorded, rewards},
      {"algorithm.reward.overlong_buffer_tokens", "8", recorded, rewards},
      {"algorithm.reward.overlong_factor", "2", recorded,
       with(rewards, {"algorithm.reward.overlong_buffer_tokens=8"})},
      {"algorithm.advantage.estimator", "rloo", recorded, {}},
      {"algorithm.advantage.std", "none", recorded, {}},
      {"algorithm.advantage.eps", "0.5", recorded, {}},
      {"algorithm.advantage.unbiased", "false", recorded, {}},
      {"algorithm.advantage.whiten", "tokens", recorded, {}},
      {"algorithm.advantage.whiten_eps", "0.5", recorded, {"algorithm.advantage.whiten=tokens"}},
      {"algorithm.advantage.whiten_eps_in",
       "std",
       recorded,
       {"algorithm.advantage.whiten=tokens", "algorithm.advantage.whiten_eps=0.5"}},
      {"algorithm.advantage.gamma", "0.5", recorded, rewards},
      {"algorithm.advantage.lambda", "0.5", recorded, kGae},
      {"algorithm.advantage.gpg_scale", "true", recorded, {}},
      {"algorithm.resampling.method", "max_min", recorded, {}},
      {"algorithm.resampling.power",
       "0.1",
       recorded,
       {"algorithm.resampling.method=pow", "rollout.reward=length"}},
      {"train.shuffle_mini_batches", "true", recorded, {"train.num_mini_batches=2"}},
      {"algorithm.critic.num_iterations", "3", recorded, kGae},
      {"algorithm.critic.num_mini_batches", "1", recorded, kGae},
      {"algorithm.critic.model_path", input_file("critic"), recorded, kGae},
      {"algorithm.critic.learning_rate", "0.1", recorded, kGae},
      {"algorithm.critic.value_clip", "0.0001", recorded,
       with(kGae, {"algorithm.critic.learning_rate=0.1"})},
      {"algorithm.critic.warmup_steps", "1", recorded, kGae},
      {"algorithm.critic.max_grad_norm", "0.001", recorded, with(kGae, {"optimizer.eps=0.1"})},
  };
}

// Whether a rollout of truncated sampling with its kept sets is trained on.
std::string of_truncated(const rl::Config& config) {
  bridge::Rollout rollout;
  rollout.prompt_ids = {1};
  rollout.completion_ids = {2};
  rollout.logprobs = {-0.5F};
  rollout.top_p = 0.5F;
  rollout.kept_sets = {{2}, {2, 3}};
  rollout.rewards = {{"exact_match", 1.0}};
  return rl::check_recorded(rollout, config, {.vocab_size = 8, .max_positions = 8}) ? "trained on"
                                                                                    : "refused";
}

std::vector<Effect> correction_effects() {
  const Words correction{"algorithm.correction.mode=tis"};
  return {
      {"algorithm.old_logprobs", "rollout", recorded, {}},
      {"algorithm.router_replay",
       "recompute",
       recorded,
       {"model.path=" + input_file("experts"), "model.init=random", "model.init_std=0.5",
        "algorithm.num_iterations=2"}},
      {"algorithm.logprobs_over", "kept", of_truncated, {"rollout.top_p=0.5"}},
      {"algorithm.correction.ratio_of", "current", recorded,
       with(correction, {"algorithm.loss=reinforce", "algorithm.num_iterations=2"})},
      {"algorithm.correction.mode", "icepop", recorded, correction},
      {"algorithm.correction.level", "sequence", recorded, correction},
      {"algorithm.correction.low", "1.5", recorded, correction},
      {"algorithm.correction.high", "0.1", recorded, correction},
      {"algorithm.correction.token_high",
       "0.9",
       recorded,
       {"algorithm.correction.mode=seq_mask_tis"}},
      {"algorithm.correction.opsm_delta", "0.0001", recorded, kTwice},
      {"algorithm.correction.reject", "[{by: token_k2, high: 0.0001}]", recorded, {}},
      {"algorithm.correction.drop_rejected", "true", recorded,
       with(kKl, {"algorithm.correction.reject=[{by: token_k2, high: 0.0001}]",
                  "model.reference_path=" + input_file("reference")})},
      {"algorithm.correction.normalize", "true", recorded, correction},
      {"algorithm.num_iterations", "2", recorded, {}},
      {"algorithm.mask_truncated", "true", recorded, {}},
      {"algorithm.max_staleness", "2", worker_side, {}},
  };
}

std::vector<Effect> distillation_effects() {
  const Words teacher{"algorithm.distillation.teacher=" + input_file("reference")};
  const Words vocabulary = with(teacher, {"algorithm.distillation.over=vocabulary"});
  return {
      {"algorithm.distillation.teacher", input_file("reference"), recorded, {}},
      {"algorithm.distillation.coef", "0.5", recorded, teacher},
      {"algorithm.distillation.over", "vocabulary", recorded, teacher},
      {"algorithm.distillation.divergence", "forward_kl", recorded, vocabulary},
      {"algorithm.distillation.top_k", "3", recorded,
       with(teacher, {"algorithm.distillation.over=top_k", "algorithm.distillation.top_k=5"})},
      {"algorithm.distillation.mixture", "0.1", recorded,
       with(vocabulary, {"algorithm.distillation.divergence=jensen_shannon"})},
  };
}

std::vector<Effect> model_effects() {
  return {
      {"lora.rank", "2", recorded, {}},
      {"lora.alpha", "4", recorded, kLora},
      {"lora.target_modules", "q_proj, down_proj", recorded, kLora},
      {"lora.path", input_file("adapter"), recorded, kLora},
      {"lora.base", "nf4", recorded, kLora},
      {"lora.adapters", "one, two", jobs,
       with(kLora, {"lora.publish=adapter", "data.train=" + input_file("adapters.jsonl")})},
      {"data.adapter_key", "tenant", jobs,
       with(kLora, {"lora.publish=adapter", "lora.adapters=one, two",
                    "data.train=" + input_file("adapters.jsonl")})},
      {"lora.publish", "adapter", [](const rl::Config& c) { return live(c, {"weights/bytes"}); },
       with(kLora, {"rollout.reward=length", "weights.shared_memory=false"})},
      {"seed", "5", jobs, {}},
      {"model.path", input_file("reference"), recorded, {}},
      // The tests are linked without CUDA, so that asking for it is an error.
      {"model.device", "cuda", [](const rl::Config& c) { return rl::device_problem(c, 0); }, {}},
      {"model.dtype", "float64", recorded, {}},
      {"model.products", "packed", kernels_of_products, {}},
      {"model.reference_path", input_file("reference"), recorded, kKl},
      {"model.init", "random", recorded, {}},
      {"model.init_std", "0.5", recorded, {"model.init=random"}},
      {"model.recompute", "full", activations, {}},
      {"model.offload_activations", "true", activations, {"model.recompute=full"}},
      {"model.mlp_tile_tokens", "7", activations, {"model.recompute=full"}},
      {"model.logit_chunk_mb", "3", activations, {}},
      {"model.fp32_norms", "true", recorded, {"model.dtype=float64"}},
      {"model.max_document_tokens",
       "64",
       [](const rl::Config& c) {
         return std::to_string(engine::num_positions(rl::load_model_config(c, c.model.path)));
       },
       {}},
      {"model.router_aux_loss_coef", "0.5", recorded, with_experts()},
      {"model.router_bias_update_rate",
       "0.5",
       recorded,
       {"model.path=" + input_file("corrections"), "model.init=random"}},
      {"model.mtp_loss_coef",
       "0.5",
       recorded,
       {"model.path=" + input_file("corrections"), "model.init=random"}},
      {"model.mtp_detach",
       "false",
       recorded,
       {"model.path=" + input_file("corrections"), "model.init=random", "model.mtp_loss_coef=0.5"}},
      {"model.vision",
       "mergers",
       [](const rl::Config& c) {
         return std::to_string(static_cast<int>(rl::policy_storage(c).vision));
       },
       {"data.image_key=picture"}},
  };
}

std::vector<Effect> optimizer_effects() {
  const Words cosine{"optimizer.lr_schedule=cosine"};
  const Words muon{"optimizer.kind=muon"};
  return {
      {"optimizer.learning_rate", "0.02", recorded, {}},
      {"optimizer.lr_schedule", "linear", recorded, {"train.steps=3"}},
      {"optimizer.warmup_steps", "2", recorded, {}},
      {"optimizer.min_lr_ratio", "0.5", recorded, cosine},
      {"optimizer.beta1", "0.5", recorded, {}},
      {"optimizer.beta2", "0.5", recorded, {}},
      {"optimizer.eps", "0.1", recorded, {}},
      {"optimizer.weight_decay", "0.5", recorded, {}},
      {"optimizer.weight_decay_of", "all", recorded, {"optimizer.weight_decay=0.5"}},
      {"optimizer.max_grad_norm", "0.001", recorded, {"optimizer.eps=0.1"}},
      {"optimizer.kind", "muon", recorded, {}},
      {"optimizer.muon.momentum", "0.5", recorded, muon},
      {"optimizer.muon.nesterov", "false", recorded, muon},
      {"optimizer.muon.newton_schulz_steps", "2", recorded, muon},
      {"optimizer.muon.scale", "spectral", recorded, muon},
      {"train.steps", "3", recorded, {}},
      {"train.tokens_per_micro_batch", "20", recorded, {}},
      {"train.num_mini_batches", "2", recorded, {}},
  };
}

std::vector<Effect> fine_tuning_effects() {
  const Words sft{"algorithm.task=sft", "data.sft=" + input_file("sft.jsonl"),
                  "train.batch_size=2"};
  return {
      {"train.batch_size", "3", fine_tuned, sft},
      {"data.sft", input_file("sft2.jsonl"), fine_tuned, sft},
      {"train.epochs", "2", fine_tuned, sft},
      {"data.completion_key", "other", fine_tuned,
       with(sft, {"data.sft=" + input_file("sft_keys.jsonl")})},
      {"data.messages_key", "chat", fine_tuned,
       with(sft, {"data.sft=" + input_file("sft_keys.jsonl"), "data.chat_template=model"})},
      {"data.sft_eval", input_file("sft2.jsonl"), fine_tuned,
       with(sft, {"data.sft_eval=" + input_file("sft.jsonl"), "eval.every=1"})},
      {"data.max_length", "9", fine_tuned, with(sft, {"data.on_overlong=truncate"})},
      {"data.on_overlong", "truncate", fine_tuned,
       with(sft, {"data.on_overlong=drop", "train.tokens_per_micro_batch=8"})},
  };
}

std::vector<Effect> preference_effects() {
  const Words pairs{"data.preferences=" + input_file("pairs.jsonl"), "train.batch_size=2"};
  const Words dpo = with(pairs, {"algorithm.task=dpo"});
  const Words rewards = with(pairs, {"algorithm.task=reward_model"});
  return {
      {"data.preferences", input_file("pairs2.jsonl"), preferred, dpo},
      {"data.preferences_eval", input_file("pairs2.jsonl"), preferred,
       with(dpo, {"data.preferences_eval=" + input_file("pairs.jsonl"), "eval.every=1"})},
      {"data.chosen_key", "other", preferred, dpo},
      {"data.rejected_key", "other", preferred, dpo},
      {"algorithm.preference.loss", "ipo", preferred, dpo},
      {"algorithm.preference.beta", "0.5", preferred, dpo},
      {"algorithm.preference.label_smoothing", "0.2", preferred, dpo},
      {"algorithm.preference.sft_coef", "0.5", preferred, dpo},
      {"algorithm.preference.center_coef", "0.5", preferred, rewards},
  };
}

std::vector<Effect> evaluation_effects() {
  // Sampled completions of different lengths, so that their mean tells which were looked at.
  const Words evaluated{"data.eval=" + input_file("train.jsonl"),
                        "eval.every=1",
                        "eval.temperature=1",
                        "rollout.reward=length",
                        "rollout.stop=d",
                        "rollout.max_completion_tokens=40"};
  return {
      {"data.eval", input_file("other.jsonl"), recorded, evaluated},
      {"eval.every", "2", recorded, evaluated},
      {"eval.sets", "{other: " + input_file("other.jsonl") + "}", recorded, evaluated},
      {"eval.max_prompts", "1", recorded, evaluated},
      {"eval.temperature", "0.0", recorded, evaluated},
      {"eval.samples", "3", recorded, evaluated},
      {"checkpoint.every", "1", recorded, {"checkpoint.every=2"}},
      {"checkpoint.keep", "1", recorded, {"checkpoint.every=1", "train.steps=3"}},
      {"checkpoint.keep_best", "true", recorded, with(evaluated, {"checkpoint.keep=0"})},
      {"log.rollouts", "true", recorded, {}},
      {"log.samples", "0", recorded, {}},
      {"log.samples_after", "true", recorded, {}},
  };
}

std::vector<Effect> parallel_effects() {
  return {
      {"parallel.data_parallel_replicate_size", "2", recorded, {"train.tokens_per_micro_batch=20"}},
      {"parallel.data_parallel_shard_size", "2", sharding, {}},
      {"parallel.expert_parallel_size", "2", sharding,
       with(with_experts(), {"parallel.data_parallel_shard_size=2"})},
      {"parallel.tensor_parallel_size", "2", sharding, {}},
      {"parallel.cp_fsdp_mode", "none", sharding, {"parallel.ulysses_parallel_size=2"}},
      {"parallel.zero_stage", "1", sharding, {"parallel.data_parallel_shard_size=2"}},
      {"parallel.reduce_dtype", "bfloat16", sharding, {"parallel.data_parallel_shard_size=2"}},
      {"parallel.pipeline_parallel_size", "2", sharding, {}},
      {"parallel.pipeline_schedule", "gpipe", sharding, {"parallel.pipeline_parallel_size=2"}},
      {"parallel.stages_per_rank", "2", sharding, {"parallel.pipeline_parallel_size=2"}},
      {"optimizer.offload", "moments", sharding, {}},
      {"model.offload_parameters", "true", sharding, {"optimizer.offload=full"}},
      {"parallel.ringattn_parallel_size", "2", recorded, {}},
      {"parallel.ulysses_parallel_size", "2", recorded, {}},
      {"parallel.context_parallel_size", "2", layout, {}},
      {"sp.method", "ring", layout, {"parallel.context_parallel_size=2", "sp.method=ulysses"}},
      {"sp.ring_impl", "all_gather", recorded, {"parallel.ringattn_parallel_size=2"}},
      {"sp.placement", "contiguous", recorded, {"parallel.ringattn_parallel_size=2"}},
      {"sp.shared_prefix", "false", recorded, {"train.tokens_per_micro_batch=64"}},
  };
}

const Words kPools{"data.curriculum.mode=pools"};

// The groups of some steps of 20 prompts, whose mean rewards are 0, 0.2, 0.4, 0.6 and 0.8.
std::string chosen_prompts(const rl::Config& config) {
  rl::Curriculum curriculum(config, {{20, 0.0}}, "");
  for (int64_t prompt = 0; prompt < 20; ++prompt) {
    curriculum.measure(prompt, 0.2 * static_cast<double>(prompt % 5));
  }
  curriculum.choose(8);
  std::string text;
  for (int64_t step = 1; step <= 8; ++step) {
    for (const int64_t group : curriculum.groups_of(step)) {
      text += std::to_string(group) + " ";
    }
  }
  return text;
}

std::vector<Effect> prompt_effects() {
  return {
      {"data.train", input_file("other.jsonl"), jobs, {}},
      {"data.prompt_key", "question", jobs, {"data.train=" + input_file("keys.jsonl")}},
      {"data.answer_key", "solution", jobs, {"data.train=" + input_file("keys.jsonl")}},
      {"data.answer_after", "b", jobs, {"data.train=" + input_file("keys.jsonl")}},
      {"data.image_key",
       "picture",
       [](const rl::Config& c) {
         return std::to_string(rl::read_prompts(c.data.train, c)[0].images.size());
       },
       {"data.train=" + input_file("images.jsonl")}},
      {"data.max_image_pixels",
       "128",
       [](const rl::Config& c) { return rl::read_image_rules(c).fingerprint(); },
       {"data.image_key=picture", "model.path=" + input_file("vision")}},
      {"data.chat_template",
       "llama3",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c)[0].prompt; },
       {"data.train=" + input_file("chat.jsonl"), "data.chat_template=chatml"}},
      {"data.template_options",
       R"({"who": "you"})",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c)[0].prompt; },
       {"data.train=" + input_file("chat.jsonl"), "data.chat_template=model",
        R"(data.template_options={"who": "me"})"}},
      {"data.text_prompts",
       "user",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c)[0].prompt; },
       {"data.chat_template=chatml"}},
      {"data.system_prompt",
       "Be brief.",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c)[0].prompt; },
       {"data.train=" + input_file("chat.jsonl"), "data.chat_template=chatml"}},
      {"data.prompt_suffix",
       "a",
       [](const rl::Config& c) { return rl::read_prompts(c.data.train, c)[0].prompt; },
       {}},
      {"data.add_special_tokens",
       "false",
       [](const rl::Config& c) {
         const auto tokenizer = engine::Tokenizer::load(input_file("bos.json"));
         const rl::Prompt prompt = rl::read_prompts(c.data.train, c)[0];
         return std::to_string(rl::prompt_ids(prompt, rl::prompt_rules(c), tokenizer).size());
       },
       {}},
      {"data.shuffle", "false", jobs, {}},
      {"data.curriculum.mode", "pools", jobs, {}},
      {"data.curriculum.easy_above", "0.7", chosen_prompts, kPools},
      {"data.curriculum.hard_below", "0.3", chosen_prompts, kPools},
      {"data.curriculum.easy_share", "0.5", chosen_prompts,
       with(kPools, {"data.curriculum.easy_above=0.7"})},
      {"data.curriculum.hard_share", "0.5", chosen_prompts, kPools},
  };
}

std::vector<Effect> sampling_effects() {
  return {
      {"rollout.prompts_per_step", "3", worker_side, {}},
      {"rollout.group_size", "2", worker_side, {}},
      {"rollout.max_prompt_tokens", "2", jobs, {"data.on_overlong=drop"}},
      {"rollout.max_completion_tokens", "3", sampled, {}},
      {"rollout.temperature", "0.2", sampled, {}},
      {"rollout.top_p", "0.1", sampled, {}},
      {"rollout.top_k", "1", sampled, {}},
      {"rollout.stop", "d", sampled, {}},
  };
}

std::vector<Effect> reward_effects() {
  const Words json{"rollout.reward=json_schema"};
  const Words code{"rollout.reward=code_tests", "rollout.reward_options.code_timeout_s=10"};
  const Words judge{"rollout.reward=judge", "rollout.reward_options.judge_model=m",
                    "rollout.reward_options.judge_url=ftp://y"};
  const Words python{"rollout.reward=python(" + input_file("rewards.py") + ":slow)"};
  return {
      {"rollout.reward", "length", scored, {}},
      {"rollout.reward_separator", "=", scored, {}},
      {"rollout.reward_options.tolerance", "0.1", scored, {"rollout.reward=math_answer"}},
      {"rollout.reward_options.regex",
       "a.*",
       scored,
       {"rollout.reward=regex", "rollout.reward_options.regex=5.*"}},
      {"rollout.reward_options.json_schema", input_file("schema.json"), scored, json},
      {"rollout.reward_options.repetition_ngram", "1", scored, {"rollout.reward=repetition"}},
      {"rollout.reward_options.code_command", "sh", scored, code},
      {"rollout.reward_options.code_timeout_s", "0.2", scored, code},
      {"rollout.reward_options.code_memory_mb", "200", scored, code},
      {"rollout.reward_options.http_url",
       "ftp://x",
       scored,
       {"rollout.reward=http", "rollout.reward_options.http_url=http://127.0.0.1:1"}},
      {"rollout.reward_options.http_timeout_s",
       "1e7",
       scored,
       {"rollout.reward=http", "rollout.reward_options.http_url=http://127.0.0.1:1"}},
      {"rollout.reward_options.judge_url", "ftp://x", scored, judge},
      {"rollout.reward_options.judge_model", "", scored, judge},
      {"rollout.reward_options.judge_rubric", "no-such-file.md", scored, judge},
      {"rollout.reward_options.judge_api_key_file", "no-such-key", scored, judge},
      {"rollout.reward_options.judge_timeout_s", "1e7", scored, judge},
      {"rollout.reward_options.python_command", "no-such-python", scored, python},
      {"rollout.reward_options.python_timeout_s", "0.2", scored, python},
  };
}

std::vector<Effect> bridge_effects() {
  const Words server{"rollout.server=sglang"};
  return {
      {"rollout.server", "llama_cpp", server_client, server},
      {"rollout.server_options.url", "http://127.0.0.1:9", server_client, server},
      {"rollout.server_options.api_key_file", input_file("key"), server_client, server},
      {"rollout.server_options.request_timeout_s", "5", server_client, server},
      {"rollout.server_options.load_timeout_s", "5", server_client, server},
      {"rollout.straggler_timeout_s", "20", endpoint, {}},
      {"rollout.min_group_size", "3", endpoint, {"rollout.straggler_timeout_s=20"}},
      {"bridge.rollout_address", "tcp://127.0.0.1:7001", endpoint, {}},
      {"bridge.weights_address", "tcp://127.0.0.1:7001", endpoint, {}},
      {"bridge.heartbeat_s", "2", endpoint, {}},
      {"bridge.worker_timeout_s", "20", endpoint, {}},
      {"bridge.pause_timeout_s", "20", endpoint, {}},
      {"bridge.assignment_timeout_s", "20", endpoint, {}},
      {"bridge.max_queued_mb", "20", endpoint, {}},
      {"bridge.journal_fsync", "always", endpoint, {}},
      {"bridge.journal_max_mb", "20", endpoint, {}},
      {"bridge.curve.trainer_secret",
       "/no/trainer.key",
       endpoint,
       {"bridge.curve.allowed_workers=/no/allowed", "bridge.curve.trainer_secret=/no/other.key"}},
      {"bridge.curve.worker_secret",
       "/no/worker.key",
       worker_side,
       {"bridge.curve.trainer_public=/no/t.pub", "bridge.curve.worker_secret=/no/other.key"}},
  };
}

std::vector<Effect> weights_effects() {
  const Words live_run{"rollout.reward=length"};
  return {
      {"weights.directory", input_file("versions"),
       [](const rl::Config& c) {
         std::error_code ignored;
         fs::remove_all(input_file("versions"), ignored);
         live(c, {});
         return std::string(fs::exists(input_file("versions")) ? "written" : "not");
       },
       live_run},
      {"weights.keep", "1",
       [](const rl::Config& c) {
         fs::remove_all(input_file("kept"));
         live(c, {});
         return std::to_string(std::distance(fs::directory_iterator(input_file("kept")), {}));
       },
       with(live_run,
            {"weights.directory=" + input_file("kept"), "weights.keep=0", "train.steps=3"})},
      {"weights.encoding", "dense", weights_sent,
       with(live_run,
            {"weights.shared_memory=false", "train.steps=3", "optimizer.learning_rate=1e-7"})},
      {"weights.full_every", "1", weights_sent,
       with(live_run,
            {"weights.shared_memory=false", "train.steps=3", "optimizer.learning_rate=1e-7"})},
      {"weights.shared_memory", "false", weights_sent, live_run},
      {"algorithm.dynamic_sampling", "refill", refilled, {}},
      {"algorithm.dynamic_sampling_by",
       "shaped",
       recorded,
       {"algorithm.dynamic_sampling=drop", "algorithm.reward.overlong_buffer_tokens=8"}},
      {"algorithm.dynamic_sampling_rounds",
       "2",
       refilled,
       {"algorithm.dynamic_sampling=refill", "algorithm.dynamic_sampling_rounds=4"}},
      {"sp.async_ulysses", "true", sequence_plan, {"parallel.ulysses_parallel_size=2"}},
      {"sp.device_speeds", "H100", layout, {"parallel.context_parallel_size=2"}},
      {"sp.ring_backward", "all_gather", sequence_plan, {"parallel.ringattn_parallel_size=2"}},
      {"sp.heads_k_stride",
       "1",
       sequence_plan,
       {"parallel.ringattn_parallel_size=2", "sp.ring_impl=all_gather"}},
      {"weights.publish_dtype",
       "bfloat16",
       [](const rl::Config& c) { return std::string(rl::to_string(rl::published_dtype(c))); },
       {}},
  };
}

}  // namespace

std::vector<Effect> all_effects() {
  std::vector<Effect> all;
  for (const auto& effects :
       {penalty_effects, loss_effects, advantage_effects, correction_effects, distillation_effects,
        model_effects, optimizer_effects, fine_tuning_effects, preference_effects,
        evaluation_effects, parallel_effects, prompt_effects, sampling_effects, reward_effects,
        bridge_effects, weights_effects}) {
    const std::vector<Effect> more = effects();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace ringside::test
