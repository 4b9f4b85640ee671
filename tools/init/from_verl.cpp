#include <algorithm>
#include <optional>
#include <sstream>
#include <string>

#include "tools/init/common_keys.h"
#include "tools/init/from_systems.h"

namespace ringside::tools {
namespace {

constexpr const char* kActor = "actor_rollout_ref.actor.";
constexpr const char* kRollout = "actor_rollout_ref.rollout.";

std::string actor(const std::string& name) { return kActor + name; }
std::string rollout(const std::string& name) { return kRollout + name; }

void set_sources(Translator& keys) {
  set_model(keys, "actor_rollout_ref.model.path");
  set_data(keys, "data.train_files", "data.train");
  set_data(keys, "data.val_files", "data.eval");
  keys.set("data.answer_key", "reward_model.ground_truth", "where verl's files have the answer");
  keys.set("data.chat_template", "model", "verl renders the model's own template");
  if (const auto thinking = keys.flag("data.apply_chat_template_kwargs.enable_thinking")) {
    keys.set("data.template_options",
             std::string("{\"enable_thinking\": ") + (*thinking ? "true}" : "false}"),
             keys.from({"data.apply_chat_template_kwargs.enable_thinking"}));
  }
  const bool filters = keys.flag("data.filter_overlong_prompts").value_or(false);
  const auto truncation = keys.text("data.truncation");
  if (filters) {
    keys.set("data.on_overlong", "drop", keys.from({"data.filter_overlong_prompts"}));
  } else if (truncation == "left") {
    keys.set("data.on_overlong", "truncate", keys.from({"data.truncation"}));
  }
  if (truncation == "error") {
    keys.leave_off("data.truncation");
  } else if (truncation && (filters || truncation != "left")) {
    keys.leave("data.truncation", filters ? "prompts that are too long are left out"
                                          : "data.on_overlong truncate keeps the last tokens");
  }
}

// Numbers that the translation of several keys needs.
struct Sizes {
  int64_t prompts = 0;       // of a step
  int64_t mini_batches = 1;  // of a step
  int64_t epochs = 1;        // passes over a step's samples
  int64_t sequence = 1;      // ranks that share a sequence
  int64_t tensor = 1;        // ranks that divide a layer's matrices
  int64_t optimizer_steps() const { return mini_batches * epochs; }
};

Sizes set_batch(Translator& keys) {
  Sizes sizes;
  const std::string mini = actor("ppo_mini_batch_size"), samples = rollout("n");
  const auto prompts = keys.count("data.train_batch_size");
  sizes.prompts = prompts.value_or(1024);
  keys.set(
      "rollout.prompts_per_step", static_cast<double>(sizes.prompts),
      prompts ? keys.from({"data.train_batch_size"}) : "verl's default of data.train_batch_size");
  keys.set("rollout.group_size", static_cast<double>(keys.count(samples).value_or(1)),
           keys.has(samples) ? keys.from({samples}) : "verl's default of rollout.n");
  const auto of_mini = keys.count(mini);
  const int64_t prompts_of_mini = std::min(of_mini.value_or(256), sizes.prompts);
  if (sizes.prompts > 0 && prompts_of_mini > 0 && sizes.prompts % prompts_of_mini == 0) {
    sizes.mini_batches = sizes.prompts / prompts_of_mini;
  }
  set_quotient(keys, "train.num_mini_batches", sizes.prompts, prompts_of_mini, mini,
               "mini-batches a step",
               std::to_string(sizes.prompts) + " prompts / " +
                   (of_mini ? keys.from({mini}) : "256, verl's default of ppo_mini_batch_size"));
  keys.same(actor("ppo_epochs"), "algorithm.num_iterations");
  const auto epochs = keys.count(actor("ppo_epochs"));
  sizes.epochs = epochs.value_or(1);
  sizes.sequence = std::max<int64_t>(
      1,
      keys.count(actor("ulysses_sequence_parallel_size"))
          .value_or(keys.count(actor("fsdp_config.ulysses_sequence_parallel_size")).value_or(1)));
  if (sizes.sequence > 1) {
    keys.set("parallel.ulysses_parallel_size", static_cast<double>(sizes.sequence),
             keys.from({actor("ulysses_sequence_parallel_size"),
                        actor("fsdp_config.ulysses_sequence_parallel_size")}));
  }
  const std::string tensor = actor("megatron.tensor_model_parallel_size");
  sizes.tensor = keys.count(tensor).value_or(1);
  if (sizes.tensor > 1) {
    keys.set("parallel.tensor_parallel_size", static_cast<double>(sizes.tensor),
             keys.from({tensor}));
  }
  return sizes;
}

void set_micro_batch(Translator& keys, const Sizes& sizes) {
  const std::string tokens = actor("ppo_max_token_len_per_gpu");
  const std::string samples = actor("ppo_micro_batch_size_per_gpu");
  const int64_t longest = keys.count("data.max_prompt_length").value_or(512) +
                          keys.count("data.max_response_length").value_or(512);
  const bool dynamic = keys.flag(actor("use_dynamic_bsz")).value_or(false);
  const auto of_gpu = keys.count(tokens);
  const auto documents = keys.count(samples);
  if (dynamic) {
    const int64_t all = of_gpu.value_or(16384) * sizes.sequence;
    keys.set("train.tokens_per_micro_batch", static_cast<double>(std::max(all, longest)),
             (of_gpu ? keys.from({tokens}) : "16384, verl's default") +
                 (sizes.sequence > 1 ? " x " + std::to_string(sizes.sequence) + " ranks" : "") +
                 (all < longest ? "; raised to the longest sample" : ""));
  } else if (documents) {
    keys.set("train.tokens_per_micro_batch", static_cast<double>(*documents * longest),
             keys.from({samples}) + " x " + std::to_string(longest) + " tokens at most");
    keys.leave(tokens, "use_dynamic_bsz is off");
  }
  keys.same("data.max_prompt_length", "rollout.max_prompt_tokens");
  keys.same("data.max_response_length", "rollout.max_completion_tokens");
}

void set_estimator(Translator& keys) {
  const std::string estimator = keys.text("algorithm.adv_estimator").value_or("gae");
  const std::string from = keys.from({"algorithm.adv_estimator"});
  if (estimator == "gae") {
    keys.set("algorithm.advantage.estimator", "gae",
             from.empty() ? "verl's default of algorithm.adv_estimator" : from);
    keys.set("algorithm.advantage.whiten", "tokens", "verl whitens the advantages of gae");
  } else if (estimator == "rloo") {
    keys.set("algorithm.advantage.estimator", "rloo", from);
    keys.set("algorithm.advantage.std", "none", from);
  } else if (estimator == "reinforce_plus_plus_baseline") {
    keys.set("algorithm.advantage.std", "none", from);
    keys.set("algorithm.advantage.whiten", "tokens", from);
  } else if (estimator == "remax") {
    keys.set("algorithm.advantage.estimator", "remax", from);
  } else if (estimator == "grpo" || estimator == "grpo_passk" ||
             estimator == "reinforce_plus_plus" || estimator == "gdpo") {
    keys.same("algorithm.adv_estimator", "algorithm.advantage.estimator");
  } else {
    keys.mistake("algorithm.adv_estimator",
                 "is \"" + estimator +
                     "\", expected one that is here too: gae, grpo, grpo_passk, gdpo, rloo, remax, "
                     "reinforce_plus_plus, reinforce_plus_plus_baseline");
  }
  if (estimator == "grpo") {
    keys.same("algorithm.norm_adv_by_std_in_grpo", "algorithm.advantage.std");
  } else {
    keys.leave("algorithm.norm_adv_by_std_in_grpo", "only adv_estimator grpo reads it");
  }
  keys.same("algorithm.gamma", "algorithm.advantage.gamma");
  keys.same("algorithm.lam", "algorithm.advantage.lambda");
  if (estimator != "gae") {
    keys.leave_all("critic", "there is no critic: adv_estimator is not gae");
    keys.leave("trainer.critic_warmup", "there is no critic: adv_estimator is not gae");
    return;
  }
  keys.same("critic.optim.lr", "algorithm.critic.learning_rate");
  keys.same("critic.model.path", "algorithm.critic.model_path");
  keys.same("critic.cliprange_value", "algorithm.critic.value_clip");
  keys.same("trainer.critic_warmup", "algorithm.critic.warmup_steps");
  keys.leave_all("critic", "the critic shares the policy's other settings");
}

void set_kl(Translator& keys) {
  const bool in_loss = keys.flag(actor("use_kl_loss")).value_or(false);
  const bool in_reward = keys.flag("algorithm.use_kl_in_reward").value_or(false);
  const std::string coefficient = actor("kl_loss_coef"), estimator = actor("kl_loss_type");
  if (in_loss) {
    keys.set("algorithm.kl_coef", keys.number(coefficient).value_or(0.001),
             keys.has(coefficient) ? keys.from({coefficient}) : "verl's default of kl_loss_coef");
    keys.same(estimator, "algorithm.kl_estimator");
  } else {
    keys.leave(coefficient, "use_kl_loss is off");
    keys.leave(estimator, "use_kl_loss is off");
  }
  const std::string why =
      in_loss ? "there is one KL term here, and use_kl_loss has it" : "use_kl_in_reward is off";
  if (!in_reward || in_loss) {
    keys.leave("algorithm.kl_penalty", why);
    keys.leave_all("algorithm.kl_ctrl", why);
    if (in_reward) {
      keys.leave("algorithm.use_kl_in_reward", why);
    }
    return;
  }
  keys.set("algorithm.kl_in", "reward", keys.from({"algorithm.use_kl_in_reward"}));
  keys.set("algorithm.kl_coef", keys.number("algorithm.kl_ctrl.kl_coef").value_or(0.001),
           keys.has("algorithm.kl_ctrl.kl_coef") ? keys.from({"algorithm.kl_ctrl.kl_coef"})
                                                 : "verl's default of kl_ctrl.kl_coef");
  if (keys.has("algorithm.kl_penalty")) {
    keys.same("algorithm.kl_penalty", "algorithm.kl_estimator");
  } else {
    keys.set("algorithm.kl_estimator", "k1", "verl's default of kl_penalty: kl");
  }
  if (keys.text("algorithm.kl_ctrl.type") == "adaptive") {
    keys.set("algorithm.kl_target", keys.number("algorithm.kl_ctrl.target_kl").value_or(0.1),
             keys.from({"algorithm.kl_ctrl.type", "algorithm.kl_ctrl.target_kl"}));
    keys.same("algorithm.kl_ctrl.horizon", "algorithm.kl_horizon");
  } else {
    keys.leave_all("algorithm.kl_ctrl", "the coefficient is fixed");
  }
}

// verl's lists "a,b" of criteria and of their bounds "low_high" as correction.reject.
std::string rejections(const std::string& criteria, const std::string& bounds) {
  std::istringstream names(criteria), limits(bounds);
  std::string text, name, limit;
  while (std::getline(names, name, ',') && std::getline(limits, limit, ',')) {
    const std::size_t cut = limit.find('_');
    text.append(text.empty() ? "[" : ", ").append("{by: ").append(name);
    if (cut != std::string::npos) {
      text.append(", low: ").append(limit.substr(0, cut));
    }
    text.append(", high: ")
        .append(cut == std::string::npos ? limit : limit.substr(cut + 1))
        .append("}");
  }
  return text + "]";
}

void set_correction(Translator& keys) {
  const auto key = [](const char* name) {
    return std::string("algorithm.rollout_correction.").append(name);
  };
  const auto text = [&](const char* name) {
    const auto found = keys.text(key(name));
    return found && *found != "null" ? found : std::nullopt;
  };
  const bool bypass = keys.flag(key("bypass_mode")).value_or(false);
  const bool reinforces = bypass && text("loss_type") == "reinforce";
  if (bypass) {
    keys.set("algorithm.old_logprobs", "rollout", keys.from({key("bypass_mode")}));
  }
  if (reinforces) {
    keys.set("algorithm.loss", "reinforce", keys.from({key("loss_type")}));
  } else {
    keys.leave(key("loss_type"), "the loss is that of actor.policy_loss.loss_mode");
  }
  const auto level = text("rollout_is");
  const bool weighs = level && (!bypass || reinforces);
  if (weighs) {
    keys.set("algorithm.correction.mode", "tis", keys.from({key("rollout_is")}));
    keys.set("algorithm.correction.level", *level, keys.from({key("rollout_is")}));
    keys.same(key("rollout_is_threshold"), "algorithm.correction.high");
  } else if (level) {
    keys.leave(key("rollout_is"), "in bypass_mode the ratio of ppo_clip has it");
  }
  const auto criteria = text("rollout_rs"), bounds = text("rollout_rs_threshold");
  if (criteria && bounds) {
    keys.set("algorithm.correction.reject", rejections(*criteria, *bounds),
             keys.from({key("rollout_rs"), key("rollout_rs_threshold")}));
  }
  if (bypass && (weighs || (criteria && bounds))) {
    keys.set("algorithm.correction.ratio_of", "current", keys.from({key("bypass_mode")}));
  }
}

void set_loss(Translator& keys) {
  const std::string both = actor("clip_ratio");
  const std::string low = actor("clip_ratio_low"), high = actor("clip_ratio_high");
  keys.same(low, "algorithm.clip_low");
  keys.same(high, "algorithm.clip_high");
  for (const auto& [side, ours] :
       {std::pair{low, "algorithm.clip_low"}, std::pair{high, "algorithm.clip_high"}}) {
    if (!keys.has(side)) {
      keys.same(both, ours);
    }
  }
  if (keys.has(low) && keys.has(high)) {
    keys.leave(both, "clip_ratio_low and clip_ratio_high have it");
  }
  const std::string aggregation = actor("loss_agg_mode");
  if (keys.text(aggregation) == "seq-mean-token-sum-norm") {
    keys.set("algorithm.loss_aggregation", "constant", keys.from({aggregation}));
  } else {
    keys.same(aggregation, "algorithm.loss_aggregation");
  }
  const std::string mode = actor("policy_loss.loss_mode");
  if (keys.text(mode) == "vanilla") {
    keys.leave_off(mode);
  } else {
    keys.same(mode, "algorithm.loss");
  }
  const std::string buffer = first_written(
      keys, {"reward.reward_kwargs.overlong_buffer_cfg", "reward_model.overlong_buffer"});
  if (keys.flag(buffer + ".enable").value_or(false)) {
    keys.same(buffer + ".len", "algorithm.reward.overlong_buffer_tokens");
    keys.same(buffer + ".penalty_factor", "algorithm.reward.overlong_factor");
  } else {
    keys.leave_all(buffer, "it is off");
  }
  if (keys.flag("algorithm.filter_groups.enable").value_or(false)) {
    keys.set("algorithm.dynamic_sampling", "refill", keys.from({"algorithm.filter_groups.enable"}));
    keys.leave_all("algorithm.filter_groups",
                   "groups of equal rewards are replaced one by one; "
                   "algorithm.dynamic_sampling_rounds bounds it");
    keys.leave("data.gen_batch_size", "groups of equal rewards are replaced one by one");
  } else {
    keys.leave_all("algorithm.filter_groups", "it is off");
  }
  set_correction(keys);
}

void set_optimizer(Translator& keys, const Sizes& sizes) {
  const std::string optim = actor("optim.");
  keys.same(optim + "lr", "optimizer.learning_rate");
  keys.same(optim + "weight_decay", "optimizer.weight_decay");
  keys.same(optim + "min_lr_ratio", "optimizer.min_lr_ratio");
  set_betas(keys, optim + "betas");
  for (const char* name : {"lr_scheduler_type", "warmup_style"}) {
    keys.same(optim + name, "optimizer.lr_schedule");
  }
  keys.same(actor("grad_clip"), "optimizer.max_grad_norm");
  keys.same(optim + "clip_grad", "optimizer.max_grad_norm");
  keys.leave("actor_rollout_ref.actor.optim.total_training_steps", "train.steps is the run's");
  const std::string steps = optim + "lr_warmup_steps", ratio = optim + "lr_warmup_steps_ratio";
  const auto warmup = keys.count(steps);
  if (warmup && *warmup > 0) {
    keys.set("optimizer.warmup_steps", static_cast<double>(*warmup * sizes.optimizer_steps()),
             keys.from({steps}) +
                 (sizes.optimizer_steps() > 1
                      ? " x " + std::to_string(sizes.optimizer_steps()) + " optimizer steps a step"
                      : ""));
    keys.leave(ratio, "lr_warmup_steps has it");
  } else {
    keys.leave_off(steps);
    set_warmup_share(keys, ratio, keys.number(ratio).value_or(0), sizes.optimizer_steps());
  }
}

void set_run(Translator& keys, const Sizes& sizes) {
  if (const auto steps = keys.count("trainer.total_training_steps")) {
    keys.set("train.steps", static_cast<double>(std::max<int64_t>(1, *steps)),
             keys.from({"trainer.total_training_steps"}));
    keys.leave("trainer.total_epochs", "total_training_steps has it");
  } else {
    steps_of_epochs(keys, "trainer.total_epochs", std::to_string(sizes.prompts));
  }
  const auto test = keys.count("trainer.test_freq");
  if (test.value_or(-1) > 0) {
    keys.set("eval.every", static_cast<double>(*test), keys.from({"trainer.test_freq"}));
  } else if (keys.has("data.val_files")) {
    keys.set(
        "eval.every", "0",
        test ? keys.from({"trainer.test_freq"}) : "verl's default of trainer.test_freq: never");
  }
  const auto save = keys.count("trainer.save_freq");
  if (save.value_or(-1) > 0) {
    keys.set("checkpoint.every", static_cast<double>(*save), keys.from({"trainer.save_freq"}));
  } else {
    keys.leave_off("trainer.save_freq");
  }
  keys.same(rollout("val_kwargs.n"), "eval.samples");
  if (keys.flag(rollout("val_kwargs.do_sample")).value_or(false)) {
    keys.same(rollout("val_kwargs.temperature"), "eval.temperature");
  }
  keys.leave_all(rollout("val_kwargs"), "evaluations are greedy, or sample at eval.temperature");
  const auto gpus = keys.count("trainer.n_gpus_per_node");
  const auto nodes = keys.count("trainer.nnodes");
  if (gpus) {
    const auto fsdp = keys.count(actor("fsdp_config.fsdp_size")).value_or(-1);
    const int64_t processes = *gpus * nodes.value_or(1);
    set_shards(
        keys, fsdp > 0 ? std::min(fsdp, processes) : processes, sizes.sequence * sizes.tensor,
        keys.from({"trainer.n_gpus_per_node", "trainer.nnodes", actor("fsdp_config.fsdp_size")}) +
            (sizes.sequence > 1 ? "; / " + std::to_string(sizes.sequence) + " of a sequence" : "") +
            (sizes.tensor > 1 ? "; / " + std::to_string(sizes.tensor) + " of a matrix" : ""));
  }
}

void set_model_options(Translator& keys) {
  const std::string recompute = "actor_rollout_ref.model.enable_gradient_checkpointing";
  keys.set("model.dtype", "bfloat16", "verl computes in bfloat16");
  keys.set("model.recompute", keys.flag(recompute).value_or(true) ? "full" : "none",
           keys.has(recompute) ? keys.from({recompute})
                               : "verl's default of enable_gradient_checkpointing");
  const std::string weights = actor("fsdp_config.param_offload");
  const std::string moments = actor("fsdp_config.optimizer_offload");
  const bool all = keys.flag(weights).value_or(false);
  const bool some = keys.flag(moments).value_or(false);
  if (all) {
    keys.set("model.offload_parameters", "true", keys.from({weights}));
    keys.set("optimizer.offload", "full", keys.from({weights, moments}));
  } else if (some) {
    keys.set("optimizer.offload", "moments", keys.from({moments}));
  }
  const std::string rank = "actor_rollout_ref.model.lora_rank";
  if (keys.number(rank).value_or(0) <= 0) {
    for (const char* name : {"lora_rank", "lora_alpha", "target_modules"}) {
      keys.leave_off("actor_rollout_ref.model." + std::string(name));
    }
  } else {
    keys.same(rank, "lora.rank");
    keys.same("actor_rollout_ref.model.lora_alpha", "lora.alpha");
    keys.same("actor_rollout_ref.model.target_modules", "lora.target_modules");
    if (!keys.has("actor_rollout_ref.model.lora_alpha")) {
      keys.set("lora.alpha", "16", "verl's default of lora_alpha");
    }
  }
}

void set_sampling(Translator& keys) {
  keys.same(rollout("temperature"), "rollout.temperature");
  keys.same(rollout("top_p"), "rollout.top_p");
  if (keys.count(rollout("top_k")).value_or(-1) > 0) {
    keys.same(rollout("top_k"), "rollout.top_k");
  } else {
    keys.leave_off(rollout("top_k"));
  }
  if (const auto name = keys.text(rollout("name"))) {
    keys.leave(rollout("name"), server_reason(*name));
  }
  for (const std::string place : {"reward.", ""}) {
    const std::string path = place + "custom_reward_function.path";
    const std::string name = place + "custom_reward_function.name";
    if (const auto file = keys.text(path)) {
      keys.set("rollout.reward",
               "python(" + *file + ":" + keys.text(name).value_or("compute_score") + ")",
               keys.from({path, name}));
      keys.to_do(
          "the reward function gets lists by keyword (completions, answers, and fields of "
          "the data by name), not (data_source, solution_str, ground_truth, extra_info) of "
          "one sample: recipes/bring_your_own.md");
      return;
    }
  }
  keys.set("rollout.reward", "math_answer",
           "verl chooses by data_source; this one is for answers that are numbers or formulas");
}

void leave_the_rest(Translator& keys) {
  leave_known(
      keys,
      {{"data.image_key",
        "verl names it for data of text alone, too; set data.image_key if prompts have images"},
       {"data.video_key", "there is no video"},
       {"data.filter_overlong_prompts_workers", "prompts are read by the workers themselves"},
       {"data.return_raw_chat", "prompts are always read as messages"},
       {"actor_rollout_ref.actor.use_torch_compile", "kernels are chosen by the device"},
       {"actor_rollout_ref.actor.optim.optimizer", "the optimizer is AdamW"},
       {"actor_rollout_ref.model.use_fused_kernels", "kernels are chosen by the device"},
       {"actor_rollout_ref.rollout.prompt_length", "rollout.max_prompt_tokens"},
       {"actor_rollout_ref.rollout.response_length", "rollout.max_completion_tokens"},
       {"actor_rollout_ref.rollout.calculate_log_probs", "workers always send log-probs"},
       {"actor_rollout_ref.rollout.ignore_eos", "a completion ends at its end token"},
       {"actor_rollout_ref.rollout.enable_prefix_caching",
        "Ringside does not start the inference server"},
       {"trainer.resume_from_path", "the same command with the same --run-dir resumes"}});
  keys.leave_all("actor_rollout_ref.ref", "the reference uses the policy's settings");
  for (const char* part :
       {"enable_chunked_prefill", "free_cache_engine", "log_prob_micro_batch_size",
        "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz",
        "log_prob_max_token_len_per_gpu", "max_num_batched_tokens", "max_num_seqs", "mode",
        "checkpoint_engine", "engine_kwargs", "load_format", "layered_summon", "dtype", "agent"}) {
    keys.leave_all(rollout(part),
                   "Ringside does not start the inference server; scoring uses "
                   "train.tokens_per_micro_batch");
  }
  keys.leave_all(actor("megatron"), "parallel.* says how the model is divided");
  keys.leave(actor("strategy"), "parallel.* says how the model is shared out");
  keys.leave("trainer.balance_batch", "micro-batches are always balanced by their tokens");
  keys.leave_all("ray_kwargs", "there is no Ray cluster");
  keys.leave("reward_model.reward_manager", "rollout.reward names the rewards");
  keys.leave("reward.reward_manager.name", "rollout.reward names the rewards");
  keys.leave_all("reward_model", "a reward model is a server: rollout.reward http");
}

}  // namespace

void from_verl(Translator& keys) {
  keys.set("algorithm.preset", "verl", "verl's defaults, with adv_estimator grpo");
  set_sources(keys);
  const Sizes sizes = set_batch(keys);
  set_micro_batch(keys, sizes);
  set_estimator(keys);
  set_kl(keys);
  set_loss(keys);
  set_run(keys, sizes);
  set_optimizer(keys, sizes);
  set_model_options(keys);
  set_sampling(keys);
  leave_the_rest(keys);
}

}  // namespace ringside::tools
