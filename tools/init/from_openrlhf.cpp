#include <algorithm>
#include <cmath>

#include "tools/init/common_keys.h"
#include "tools/init/from_systems.h"

namespace ringside::tools {
namespace {

using Names = std::initializer_list<std::string>;

// The name that the file has, of those of 0.11 and of 0.9.
std::string name_of(const Translator& keys, Names names) { return first_written(keys, names); }

void same(Translator& keys, Names names, std::string_view ours) {
  keys.same(first_written(keys, names), ours);
}

// Optimizer steps of a step.
int64_t set_batch(Translator& keys) {
  const auto rollouts = name_of(keys, {"rollout.batch_size", "rollout_batch_size"});
  const auto samples = name_of(keys, {"rollout.n_samples_per_prompt", "n_samples_per_prompt"});
  const auto update = name_of(keys, {"train.batch_size", "train_batch_size"});
  const auto epochs = name_of(keys, {"train.max_epochs", "max_epochs"});
  const int64_t prompts = keys.count(rollouts).value_or(1024);
  const int64_t group = keys.count(samples).value_or(1);
  const int64_t of_update = keys.count(update).value_or(128);
  keys.set("rollout.prompts_per_step", static_cast<double>(prompts),
           keys.has(rollouts) ? keys.from({rollouts}) : "OpenRLHF's default of rollout.batch_size");
  keys.set("rollout.group_size", static_cast<double>(group),
           keys.has(samples) ? keys.from({samples}) : "OpenRLHF's default of n_samples_per_prompt");
  set_quotient(
      keys, "train.num_mini_batches", prompts * group, std::min(of_update, prompts * group), update,
      "mini-batches a step",
      std::to_string(prompts * group) + " samples / " +
          (keys.has(update) ? keys.from({update}) : "128, OpenRLHF's default of train.batch_size"));
  keys.same(epochs, "algorithm.num_iterations");
  const int64_t mini = of_update > 0 ? std::max<int64_t>(1, prompts * group / of_update) : 1;
  return mini * std::max<int64_t>(1, keys.count(epochs).value_or(1));
}

void set_lengths(Translator& keys) {
  const auto all = keys.count(name_of(keys, {"data.max_len", "max_len"}));
  const auto prompt = keys.count("prompt_max_len");
  const auto completion =
      keys.count(name_of(keys, {"rollout.max_new_tokens", "max_new_tokens", "generate_max_len"}));
  const std::string both = keys.from({"data.max_len", "max_len"});
  const int64_t most = all.value_or(2048);
  const int64_t of_completion = completion.value_or(prompt ? most - *prompt : most / 2);
  keys.set("rollout.max_completion_tokens", static_cast<double>(of_completion),
           completion ? keys.from({"rollout.max_new_tokens", "max_new_tokens", "generate_max_len"})
                      : both +
                            "; half of 2048 or of data.max_len: OpenRLHF bounds prompt and "
                            "completion together");
  keys.set("rollout.max_prompt_tokens", static_cast<double>(prompt.value_or(most - of_completion)),
           prompt ? keys.from({"prompt_max_len"}) : both + "; what the completion leaves");
  keys.set("data.on_overlong", "drop", "OpenRLHF leaves out prompts that are too long");
  const auto micro = name_of(keys, {"train.micro_batch_size", "micro_train_batch_size"});
  const int64_t documents = keys.count(micro).value_or(1);
  const int64_t longest = of_completion + prompt.value_or(most - of_completion);
  if (keys.flag("train.dynamic_batch_enable").value_or(false)) {
    keys.set("train.tokens_per_micro_batch",
             static_cast<double>(
                 std::max(longest, keys.count("train.max_tokens_per_gpu").value_or(16192))),
             keys.from({"train.dynamic_batch_enable", "train.max_tokens_per_gpu"}));
  } else {
    keys.set("train.tokens_per_micro_batch", static_cast<double>(documents * longest),
             keys.from({micro}) + "; x " + std::to_string(longest) + " tokens at most");
  }
}

void set_estimator(Translator& keys) {
  const auto name = name_of(keys, {"algo.advantage.estimator", "advantage_estimator"});
  const std::string estimator = keys.text(name).value_or("gae");
  const std::string from =
      keys.has(name) ? keys.from({name}) : "OpenRLHF's default of the estimator";
  const bool plain = estimator == "group_norm" || estimator == "dr_grpo" || estimator == "rloo" ||
                     estimator == "reinforce" || estimator == "reinforce_baseline";
  if (estimator == "gae") {
    keys.set("algorithm.advantage.estimator", "gae", from);
  } else if (!plain) {
    keys.mistake(name, "is \"" + estimator +
                           "\", expected gae, group_norm, dr_grpo, rloo, reinforce or "
                           "reinforce_baseline");
  } else {
    keys.same(name, "algorithm.advantage.estimator");
  }
  if (estimator == "rloo" || estimator == "reinforce_baseline") {
    keys.set("algorithm.advantage.std", "none", from);
  }
  if (estimator != "group_norm" && estimator != "dr_grpo") {
    keys.set("algorithm.advantage.whiten", "tokens", "OpenRLHF whitens these advantages");
  }
  const auto no_std = name_of(keys, {"algo.advantage.no_std_norm", "no_advantage_std_norm"});
  keys.choose(no_std, "algorithm.advantage.std", "none", "");
  same(keys, {"algo.advantage.gamma", "gamma"}, "algorithm.advantage.gamma");
  same(keys, {"algo.advantage.lambd", "lambd"}, "algorithm.advantage.lambda");
  if (estimator == "gae") {
    same(keys, {"critic.adam.lr", "critic_learning_rate"}, "algorithm.critic.learning_rate");
    same(keys, {"critic.value_clip", "value_clip"}, "algorithm.critic.value_clip");
    same(keys, {"critic.model_name_or_path", "critic_pretrain"}, "algorithm.critic.model_path");
    keys.leave_all("critic", "the critic shares the policy's other settings");
  } else {
    keys.leave_all("critic", "there is no critic: the estimator is not gae");
  }
}

void set_loss(Translator& keys) {
  same(keys, {"algo.kl.init_coef", "init_kl_coef"}, "algorithm.kl_coef");
  same(keys, {"algo.kl.estimator", "kl_estimator"}, "algorithm.kl_estimator");
  same(keys, {"algo.kl.target", "kl_target"}, "algorithm.kl_target");
  same(keys, {"algo.kl.horizon", "kl_horizon"}, "algorithm.kl_horizon");
  const auto in_loss = name_of(keys, {"algo.kl.use_loss", "use_kl_loss"});
  if (keys.flag(in_loss).value_or(false)) {
    keys.set("algorithm.kl_in", "loss", keys.from({in_loss}));
  }
  const auto pair = name_of(keys, {"actor.eps_clip_low_high", "eps_clip_low_high"});
  const auto single = name_of(keys, {"actor.eps_clip", "eps_clip"});
  if (const auto bounds = keys.items(pair); bounds.size() == 2) {
    keys.set("algorithm.clip_low", bounds[0], keys.from({pair}));
    keys.set("algorithm.clip_high", bounds[1], keys.from({pair}));
    keys.leave(single, "eps_clip_low_high has it");
  } else {
    keys.same(single, "algorithm.clip_low");
    keys.same(single, "algorithm.clip_high");
  }
  same(keys, {"actor.dual_clip", "dual_clip"}, "algorithm.ppo_clip.dual_clip");
  same(keys, {"actor.entropy_coef", "entropy_loss_coef"}, "algorithm.entropy_coef");
  if (keys.text("actor.policy_loss_type") == "gspo") {
    keys.set("algorithm.importance_level", "sequence", keys.from({"actor.policy_loss_type"}));
  }
  const auto filters = name_of(keys, {"algo.dynamic_filtering_enable", "dynamic_filtering"});
  keys.choose(filters, "algorithm.dynamic_sampling", "refill", "");
  keys.leave(name_of(keys, {"algo.dynamic_filtering_range", "dynamic_filtering_reward_range"}),
             "groups whose rewards are all equal are replaced");
  same(keys, {"reward.overlong_buffer_len", "overlong_buffer_len"},
       "algorithm.reward.overlong_buffer_tokens");
  same(keys, {"reward.overlong_penalty_factor", "overlong_penalty_factor"},
       "algorithm.reward.overlong_factor");
  const auto corrects =
      name_of(keys, {"algo.advantage.is_correction_enable", "enable_vllm_is_correction"});
  if (keys.flag(corrects).value_or(false)) {
    const std::string kind = keys.text("algo.advantage.is_correction_type").value_or("tis");
    keys.set("algorithm.correction.mode", kind == "seq-mask-tis" ? "seq_mask_tis" : kind,
             keys.from({corrects, "algo.advantage.is_correction_type"}));
    const auto bounds = keys.items(
        name_of(keys, {"algo.advantage.is_correction_threshold", "vllm_is_truncated_threshold"}));
    keys.set("algorithm.correction.low", bounds.size() == 2 ? bounds[0] : "0.5",
             keys.from({corrects}));
    keys.set("algorithm.correction.high", bounds.size() == 2 ? bounds[1] : "5",
             keys.from({corrects}));
  }
}

void set_optimizer(Translator& keys, const std::string& prefix, int64_t per_step) {
  same(keys, {prefix + "adam.lr", "actor_learning_rate", "learning_rate"},
       "optimizer.learning_rate");
  const auto betas = name_of(keys, {prefix + "adam.betas", "adam_betas"});
  if (keys.has(betas)) {
    set_betas(keys, betas);
  } else {
    keys.set("optimizer.beta2", "0.95", "OpenRLHF's default of adam.betas");
  }
  same(keys, {prefix + "adam.eps"}, "optimizer.eps");
  same(keys, {prefix + "adam.weight_decay", "l2"}, "optimizer.weight_decay");
  same(keys, {prefix + "max_norm", "max_norm"}, "optimizer.max_grad_norm");
  const std::string schedule = prefix + "lr_scheduler", least = prefix + "min_lr_ratio";
  if (keys.text(schedule).value_or("cosine_with_min_lr") == "cosine_with_min_lr") {
    keys.set("optimizer.lr_schedule", "cosine",
             keys.has(schedule) ? keys.from({schedule}) : "OpenRLHF's default of lr_scheduler");
    keys.set("optimizer.min_lr_ratio", keys.number(least).value_or(0.1),
             keys.has(least) ? keys.from({least}) : "OpenRLHF's default of min_lr_ratio");
  } else {
    keys.same(schedule, "optimizer.lr_schedule");
    keys.same(least, "optimizer.min_lr_ratio");
  }
  const auto share = name_of(keys, {prefix + "lr_warmup_ratio", "lr_warmup_ratio"});
  set_warmup_share(keys, share, keys.number(share).value_or(0.03), per_step);
}

void set_model_options(Translator& keys, int64_t gpus, const std::string& prefix) {
  const auto dtype = name_of(keys, {"ds.param_dtype", "param_dtype"});
  keys.set("model.dtype", keys.text(dtype) == "fp16" ? "float16" : "bfloat16",
           keys.has(dtype) ? keys.from({dtype}) : "OpenRLHF's default of ds.param_dtype");
  const auto recompute =
      name_of(keys, {prefix + "gradient_checkpointing_enable", "gradient_checkpointing"});
  keys.choose(recompute, "model.recompute", "full", "");
  const auto ring_name = name_of(keys, {"ds.ring_attn_size", "ring_attn_size"});
  const int64_t ring = std::max<int64_t>(1, keys.count(ring_name).value_or(1));
  keys.same(ring_name, "parallel.ringattn_parallel_size");
  keys.leave("ds.ring_attn_head_stride", "it is for sp.ring_impl all_gather: sp.heads_k_stride");
  keys.leave("ring_head_stride", "it is for sp.ring_impl all_gather: sp.heads_k_stride");
  same(keys, {"ds.zero_stage", "zero_stage"}, "parallel.zero_stage");
  set_shards(keys, gpus, ring,
             keys.from({"actor.num_nodes", "actor.num_gpus_per_node", "actor_num_nodes",
                        "actor_num_gpus_per_node"}));
  keys.choose(name_of(keys, {"ds.adam_offload", "adam_offload"}), "optimizer.offload", "moments",
              "");
  const auto rank = name_of(keys, {"ds.lora.rank", "lora_rank"});
  if (keys.count(rank).value_or(0) > 0) {
    keys.same(rank, "lora.rank");
    const auto alpha = name_of(keys, {"ds.lora.alpha", "lora_alpha"});
    keys.set("lora.alpha", keys.number(alpha).value_or(16),
             keys.has(alpha) ? keys.from({alpha}) : "OpenRLHF's default of lora.alpha");
    same(keys, {"ds.lora.target_modules", "target_modules"}, "lora.target_modules");
    keys.choose(name_of(keys, {"ds.load_in_4bit", "load_in_4bit"}), "lora.base", "nf4", "");
  }
}

void set_reward(Translator& keys) {
  const auto remote = name_of(keys, {"reward.remote_url", "remote_rm_url"});
  const auto model = name_of(keys, {"reward.model_name_or_path", "reward_pretrain"});
  const auto url = keys.text(remote);
  if (url && url->ends_with(".py")) {
    keys.set("rollout.reward", "python(" + *url + ":reward_func)", keys.from({remote}));
    keys.to_do(
        "the function gets lists by keyword (completions, answers, and fields of the data by "
        "name), not (queries, prompts, labels): recipes/bring_your_own.md");
  } else if (url) {
    keys.set("rollout.reward", "http", keys.from({remote}));
    keys.set("rollout.reward_options.http_url", *url, keys.from({remote}));
    keys.to_do("the reward server gets one completion a request: recipes/bring_your_own.md");
  } else {
    keys.set("rollout.reward", "math_answer", "the file names no reward function");
    keys.to_do("choose rollout.reward: recipes/README.md");
  }
  keys.leave(model, "a reward model is a server of yours: rollout.reward http");
  const auto range = keys.items(name_of(keys, {"reward.clip_range", "reward_clip_range"}));
  if (range.size() == 2) {
    keys.set("algorithm.reward.clip", range[1],
             keys.from({"reward.clip_range", "reward_clip_range"}));
  }
}

void set_data_fields(Translator& keys, bool supervised) {
  same(keys, {"data.input_key", "input_key"}, "data.prompt_key");
  if (supervised) {
    same(keys, {"data.output_key", "output_key"}, "data.completion_key");
  } else {
    same(keys, {"data.label_key", "label_key"}, "data.answer_key");
  }
  const auto chat = name_of(keys, {"data.apply_chat_template", "apply_chat_template"});
  if (keys.flag(chat).value_or(false)) {
    keys.set("data.chat_template", "model", keys.from({chat}));
    if (!supervised) {
      keys.set("data.text_prompts", "user", keys.from({chat}));
    }
  }
  keys.leave(name_of(keys, {"data.input_template", "input_template"}),
             "write it into the data, or use data.chat_template, data.prompt_suffix and "
             "data.system_prompt");
}

void set_steps(Translator& keys, const std::string& prompts_per_step) {
  const auto samples = name_of(keys, {"data.max_samples", "max_samples"});
  const auto episodes = name_of(keys, {"train.num_episodes", "num_episodes"});
  const auto most = keys.count(samples);
  const int64_t passes = keys.count(episodes).value_or(1);
  if (most && !prompts_per_step.empty()) {
    keys.set("train.steps",
             std::ceil(static_cast<double>(*most * passes) / std::stod(prompts_per_step)),
             keys.from({samples, episodes}) + "; / " + prompts_per_step +
                 " prompts; fewer if the data has fewer");
  } else {
    keys.to_do("train.steps: " + std::to_string(passes) + " x the number of prompts / " +
               prompts_per_step + "; the default is 100");
  }
}

}  // namespace

void from_openrlhf(Translator& keys, bool supervised) {
  const std::string prefix = supervised ? "" : "actor.";
  set_model(keys,
            name_of(keys, {"actor.model_name_or_path", "model.model_name_or_path", "pretrain"}));
  set_data_fields(keys, supervised);
  const auto nodes = keys.count(name_of(keys, {"actor.num_nodes", "actor_num_nodes"}));
  const auto gpus =
      keys.count(name_of(keys, {"actor.num_gpus_per_node", "actor_num_gpus_per_node"}));
  int64_t per_step = 1;
  if (supervised) {
    keys.set("algorithm.task", "sft", "train_sft");
    set_data(keys, name_of(keys, {"data.dataset", "dataset"}), "data.sft");
    same(keys, {"train.batch_size", "train_batch_size"}, "train.batch_size");
    same(keys, {"train.max_epochs", "max_epochs"}, "train.epochs");
    same(keys, {"data.max_len", "max_len"}, "data.max_length");
    const auto longest = name_of(keys, {"data.max_len", "max_len"});
    const auto micro = name_of(keys, {"train.micro_batch_size", "micro_train_batch_size"});
    keys.set(
        "train.tokens_per_micro_batch",
        static_cast<double>(keys.count(longest).value_or(2048) * keys.count(micro).value_or(8)),
        keys.from({micro, longest}));
    keys.set("data.on_overlong", "drop", "OpenRLHF leaves out documents that are too long");
    keys.leave(name_of(keys, {"data.max_samples", "max_samples"}), "all records are used");
    if (!keys.has("adam.lr") && !keys.has("learning_rate")) {
      keys.set("optimizer.learning_rate", "5e-6", "OpenRLHF's default of adam.lr");
    }
  } else {
    keys.set("algorithm.preset", "openrlhf", "OpenRLHF's defaults, with estimator group_norm");
    set_data(keys, name_of(keys, {"data.prompt_dataset", "prompt_data"}), "data.train");
    per_step = set_batch(keys);
    set_lengths(keys);
    set_estimator(keys);
    set_loss(keys);
    set_reward(keys);
    set_steps(keys, keys.value_of("rollout.prompts_per_step"));
    same(keys, {"rollout.temperature", "temperature"}, "rollout.temperature");
    same(keys, {"rollout.top_p", "top_p"}, "rollout.top_p");
  }
  set_optimizer(keys, prefix, per_step);
  set_model_options(keys, gpus.value_or(0) * nodes.value_or(1), supervised ? "model." : "actor.");
  same(keys, {"train.seed", "seed"}, "seed");
  const auto save = name_of(keys, {"ckpt.save_steps", "save_steps"});
  if (keys.count(save).value_or(-1) > 0) {
    keys.same(save, "checkpoint.every");
  } else {
    keys.leave_off(save);
  }
  same(keys, {"ckpt.max_num", "max_ckpt_num"}, "checkpoint.keep");
  const auto evaluates = name_of(keys, {"eval.steps", "eval_steps"});
  if (keys.count(evaluates).value_or(-1) > 0) {
    keys.same(evaluates, "eval.every");
    set_data(keys, name_of(keys, {"eval.dataset", "eval_dataset"}),
             supervised ? "data.sft_eval" : "data.eval");
  } else {
    keys.leave_off(evaluates);
    keys.leave(name_of(keys, {"eval.dataset", "eval_dataset"}), "eval.steps is off");
  }
  keys.leave_all("vllm", server_reason("vLLM"));
  leave_known(keys, {{"train.colocate_all", "trainer and workers are processes of their own"},
                     {"train.colocate_actor_ref", "the reference shares the trainer's ranks"},
                     {"ds.enable_sleep", "trainer and workers are processes of their own"},
                     {"ckpt.save_hf", "checkpoint-final is a Hugging Face directory"},
                     {"ckpt.load_enable", "the same command with the same --run-dir resumes"},
                     {"ckpt.path", "the option --run-dir"},
                     {"ckpt.output_dir", "the option --run-dir"}});
  keys.leave_all("ref", "the reference uses the policy's settings");
  keys.leave_all("logger", "metrics are in RUN_DIR/metrics.jsonl and RUN_DIR/tensorboard");
}

}  // namespace ringside::tools
