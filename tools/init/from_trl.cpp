#include <algorithm>
#include <cmath>

#include "tools/init/common_keys.h"
#include "tools/init/from_systems.h"

namespace ringside::tools {
namespace {

void set_reward(Translator& keys, const std::string& prefix) {
  const std::string names = prefix + "reward_funcs", weights = prefix + "reward_weights";
  const auto functions = keys.items(names);
  const auto factors = keys.items(weights);
  if (!factors.empty() && factors.size() != functions.size()) {
    keys.mistake(weights, "has " + std::to_string(factors.size()) + " weights for " +
                              std::to_string(functions.size()) + " rewards");
    return;
  }
  std::string rewards;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const std::string& name = functions[i];
    std::string ours = "math_answer";
    if (name == "think_format_reward") {
      ours = "regex";
      keys.set("rollout.reward_options.regex", "<think>.*</think>.*",
               "think_format_reward, which also forbids a second <think>");
    } else if (name == "reasoning_accuracy_reward") {
      keys.set("rollout.reward_separator", "</think>", "reasoning_accuracy_reward");
    } else if (name == "get_soft_overlong_punishment") {
      keys.to_do("get_soft_overlong_punishment: algorithm.reward.overlong_buffer_tokens: 256");
      continue;
    } else if (name != "accuracy_reward") {
      const auto dot = name.rfind('.');
      std::string file = name.substr(0, dot);
      std::replace(file.begin(), file.end(), '.', '/');
      ours = "python(" + (dot == std::string::npos ? "rewards" : file) +
             ".py:" + name.substr(dot == std::string::npos ? 0 : dot + 1) + ")";
      keys.to_do("the function " + name +
                 " gets completions as texts, never as messages, and no "
                 "completion_ids: recipes/bring_your_own.md");
    }
    rewards += (rewards.empty() ? "" : ", ") + ours +
               (factors.empty() || factors[i] == "1.0" ? "" : " * " + factors[i]);
  }
  if (functions.empty()) {
    keys.set("rollout.reward", "math_answer", "the file names no reward");
    keys.to_do("choose rollout.reward: recipes/README.md");
  } else if (!rewards.empty()) {
    keys.set("rollout.reward", rewards, keys.from({names, weights}));
  }
}

void set_correction(Translator& keys, const std::string& prefix) {
  const std::string begin = prefix + "vllm_importance_sampling_";
  if (!keys.flag(prefix + "use_vllm").value_or(false)) {
    for (const char* name : {"correction", "mode", "clip_max", "clip_min", "cap"}) {
      keys.leave(begin + name, "use_vllm is off");
    }
    return;
  }
  keys.leave(prefix + "use_vllm", server_reason("vLLM"));
  if (!keys.flag(begin + "correction").value_or(true)) {
    return;
  }
  const std::string mode = keys.text(begin + "mode").value_or("sequence_mask");
  const std::string place = keys.has(begin + "mode") ? keys.from({begin + "mode"})
                                                     : "TRL's correction of vLLM's log-probs";
  keys.set("algorithm.correction.mode", mode.ends_with("_mask") ? "icepop" : "tis", place);
  keys.set("algorithm.correction.level", mode.starts_with("token") ? "token" : "sequence", place);
  if (!keys.has(begin + "clip_max") && !keys.has(begin + "cap")) {
    keys.set("algorithm.correction.high", "3", "TRL's default of clip_max");
  }
  keys.same(begin + "clip_max", "algorithm.correction.high");
  keys.same(begin + "cap", "algorithm.correction.high");
  keys.same(begin + "clip_min", "algorithm.correction.low");
}

void set_reference_updates(Translator& keys, const std::string& prefix, int64_t per_step) {
  const std::string on = prefix + "sync_ref_model", every = prefix + "ref_model_sync_steps";
  const std::string mixup = prefix + "ref_model_mixup_alpha";
  if (!keys.flag(on).value_or(false)) {
    keys.leave(every, "sync_ref_model is off");
    keys.leave(mixup, "sync_ref_model is off");
    return;
  }
  keys.set("algorithm.reference_update_every",
           std::ceil(keys.number(every).value_or(512) / static_cast<double>(per_step)),
           keys.from({on, every}) +
               (per_step > 1 ? "; / " + std::to_string(per_step) + " optimizer steps a step" : ""));
  keys.set("algorithm.reference_mixup", keys.number(mixup).value_or(0.6),
           keys.has(mixup) ? keys.from({mixup}) : "TRL's default of ref_model_mixup_alpha");
}

void set_loss(Translator& keys, const std::string& prefix, int64_t per_step) {
  const std::string loss = prefix + "loss_type";
  const std::string type = keys.text(loss).value_or("dapo");
  const std::string comment = keys.has(loss) ? keys.from({loss}) : "TRL's defaults";
  if (type == "dapo" || type == "vespo") {
    keys.set("algorithm.preset", "trl", comment);
  } else if (type == "grpo" || type == "bnpo" || type == "dr_grpo" || type == "cispo" ||
             type == "sapo") {
    keys.set("algorithm.preset", "trl_" + type, comment);
  } else {
    keys.mistake(loss, "is \"" + type +
                           "\", expected one that is here too: dapo, grpo, bnpo, dr_grpo, cispo, "
                           "sapo, vespo");
  }
  if (type == "vespo") {
    keys.set("algorithm.loss", "vespo", comment);
  }
  for (const auto& [theirs, ours] :
       {std::pair{"vespo_k_pos", "algorithm.vespo.k_positive"},
        std::pair{"vespo_lambda_pos", "algorithm.vespo.lambda_positive"},
        std::pair{"vespo_k_neg", "algorithm.vespo.k_negative"},
        std::pair{"vespo_lambda_neg", "algorithm.vespo.lambda_negative"},
        std::pair{"sapo_temperature_pos", "algorithm.sapo.tau_positive"},
        std::pair{"sapo_temperature_neg", "algorithm.sapo.tau_negative"},
        std::pair{"delta", "algorithm.ppo_clip.delta"}, std::pair{"beta", "algorithm.kl_coef"},
        std::pair{"num_iterations", "algorithm.num_iterations"},
        std::pair{"importance_sampling_level", "algorithm.importance_level"},
        std::pair{"scale_rewards", "algorithm.advantage.std"},
        std::pair{"mask_truncated_completions", "algorithm.mask_truncated"},
        std::pair{"entropy_coef", "algorithm.entropy_coef"},
        std::pair{"off_policy_mask_threshold", "algorithm.correction.opsm_delta"}}) {
    keys.same(prefix + theirs, ours);
  }
  if (type != "cispo") {
    keys.same(prefix + "epsilon", "algorithm.clip_low");
  } else {
    keys.leave(prefix + "epsilon", "loss_type cispo reads epsilon_high alone");
  }
  keys.same(keys.has(prefix + "epsilon_high") ? prefix + "epsilon_high" : prefix + "epsilon",
            "algorithm.clip_high");
  if (keys.flag(prefix + "use_bias_correction_kl") == false) {
    keys.set("algorithm.kl_estimator", "k3", keys.from({prefix + "use_bias_correction_kl"}));
  }
  if (keys.flag(prefix + "use_adaptive_entropy").value_or(false)) {
    keys.same(prefix + "entropy_target", "algorithm.entropy_target");
    keys.same(prefix + "entropy_coef_delta", "algorithm.entropy_step");
  } else {
    for (const char* name :
         {"entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max"}) {
      keys.leave(prefix + name, "use_adaptive_entropy is off");
    }
  }
  set_reference_updates(keys, prefix, per_step);
}

// Optimizer steps of a generation of completions.
int64_t set_grpo_batch(Translator& keys, int64_t processes) {
  const auto device = keys.count("per_device_train_batch_size");
  const int64_t accumulated = keys.count("gradient_accumulation_steps").value_or(1);
  const auto generations = keys.count("num_generations");
  const auto whole = keys.count("generation_batch_size");
  const auto steps = keys.count("steps_per_generation");
  if (whole && steps) {
    keys.mistake("generation_batch_size", "is set together with steps_per_generation (" +
                                              keys.from({"steps_per_generation"}) +
                                              "); expected one of them, as TRL demands");
    return 1;
  }
  const int64_t update = device.value_or(8) * accumulated * processes;
  const int64_t batch =
      whole.value_or(device.value_or(8) * processes * steps.value_or(accumulated));
  const std::string parts =
      (device ? keys.from({"per_device_train_batch_size"})
              : "8 completions a device, TRL's default") +
      (accumulated > 1 ? "; x " + keys.from({"gradient_accumulation_steps"}) : "") + "; x " +
      std::to_string(processes) + " processes";
  const std::string completions =
      whole
          ? keys.from({"generation_batch_size"})
          : parts + (steps ? "; in the place of accumulation " + keys.from({"steps_per_generation"})
                           : "");
  set_quotient(keys, "rollout.prompts_per_step", batch, generations.value_or(8), "num_generations",
               "prompts a step",
               completions + "; / " +
                   (generations ? keys.from({"num_generations"}) : "8 generations, TRL's default"));
  set_quotient(keys, "train.num_mini_batches", batch, update, "gradient_accumulation_steps",
               "mini-batches a step", std::to_string(batch) + " completions / " + parts);
  const int64_t longest = keys.count("max_completion_length").value_or(512) +
                          keys.count("max_prompt_length").value_or(512);
  keys.set("train.tokens_per_micro_batch", static_cast<double>(device.value_or(8) * longest),
           std::to_string(device.value_or(8)) + " completions of " + std::to_string(longest) +
               " tokens with their prompts at most");
  const int64_t iterations = std::max<int64_t>(1, keys.count("num_iterations").value_or(1));
  return update > 0 ? std::max<int64_t>(1, batch / update) * iterations : 1;
}

void set_run(Translator& keys, int64_t per_step, bool supervised) {
  keys.same("learning_rate", "optimizer.learning_rate");
  const auto most = keys.number("max_steps");
  if (most.value_or(-1) <= 0) {
    keys.leave_off("max_steps");
  }
  if (most.value_or(-1) > 0) {
    set_steps(keys, "max_steps", "train.steps", per_step);
    keys.leave("num_train_epochs", "max_steps has it");
  } else if (supervised) {
    keys.set("train.epochs", keys.number("num_train_epochs").value_or(3),
             keys.has("num_train_epochs") ? keys.from({"num_train_epochs"})
                                          : "TRL's default of num_train_epochs");
  } else if (keys.has("num_train_epochs")) {
    steps_of_epochs(keys, "num_train_epochs", "rollout.prompts_per_step");
  } else {
    keys.to_do(
        "train.steps: 3 x the number of prompts / rollout.prompts_per_step (TRL's default "
        "of num_train_epochs); the default is 100");
  }
  const auto warmup = keys.number("warmup_steps");
  if (warmup && *warmup >= 1) {
    keys.same("warmup_steps", "optimizer.warmup_steps");
    keys.leave("warmup_ratio", "warmup_steps has it");
  } else if (warmup && *warmup > 0) {  // transformers 5: below 1 a share of the run
    set_warmup_share(keys, "warmup_steps", *warmup, per_step);
    keys.leave("warmup_ratio", "warmup_steps has it");
  } else {
    keys.leave_off("warmup_steps");
    set_warmup_share(keys, "warmup_ratio", keys.number("warmup_ratio").value_or(0), per_step);
  }
  if (keys.text("lr_scheduler_type") == "cosine_with_min_lr") {
    keys.same("lr_scheduler_kwargs.min_lr_rate", "optimizer.min_lr_ratio");
  }
  const std::string evaluates =
      keys.text(first_written(keys, {"eval_strategy", "evaluation_strategy"})).value_or("no");
  if (evaluates == "steps") {
    set_steps(keys, "eval_steps", "eval.every", per_step);
    keys.to_do(std::string("name the held-out file in ") +
               (supervised ? "data.sft_eval" : "data.eval"));
  } else {
    keys.leave("eval_steps", "eval_strategy is " + evaluates);
  }
  if (keys.text("save_strategy").value_or("steps") == "steps") {
    set_steps(keys, "save_steps", "checkpoint.every", per_step);
  } else {
    keys.leave("save_steps", "save_strategy is " + keys.text("save_strategy").value_or(""));
  }
  keys.choose("load_best_model_at_end", "checkpoint.keep_best", "true", "");
}

void set_adapters(Translator& keys) {
  if (!keys.flag("use_peft").value_or(false)) {
    for (const char* name :
         {"lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "load_in_4bit",
          "load_in_8bit", "use_rslora", "use_dora", "lora_task_type", "lora_modules_to_save"}) {
      keys.leave(name, "use_peft is off");
    }
    return;
  }
  keys.set("lora.rank", static_cast<double>(keys.count("lora_r").value_or(16)),
           keys.has("lora_r") ? keys.from({"use_peft", "lora_r"}) : keys.from({"use_peft"}));
  keys.same("lora_alpha", "lora.alpha");
  keys.same("lora_target_modules", "lora.target_modules");
  keys.choose("load_in_4bit", "lora.base", "nf4", "");
  keys.choose("load_in_8bit", "lora.base", "int8", "");
  if (keys.flag("use_rslora").value_or(false)) {
    keys.leave("use_rslora",
               "the product is scaled by lora.alpha / lora.rank: set lora.alpha to "
               "alpha x the root of the rank");
  }
}

void set_model_options(Translator& keys) {
  const bool half = keys.flag("fp16").value_or(false);
  const bool brain = keys.flag("bf16").value_or(!half);
  keys.set(
      "model.dtype",
      half    ? "float16"
      : brain ? "bfloat16"
              : "float32",
      keys.has("fp16") || keys.has("bf16") ? keys.from({"bf16", "fp16"}) : "TRL's default: bf16");
  if (half && brain) {
    keys.mistake("fp16", "is set together with bf16; expected one of them");
  }
  for (const char* name : {"dtype", "torch_dtype"}) {
    keys.leave(name, "master weights are float32 here; model.dtype is that of the passes");
  }
  keys.set("model.recompute", keys.flag("gradient_checkpointing").value_or(true) ? "full" : "none",
           keys.has("gradient_checkpointing") ? keys.from({"gradient_checkpointing"})
                                              : "TRL's default of gradient_checkpointing");
  keys.same("activation_offloading", "model.offload_activations");
  keys.leave("activation_offloading", "as model.offload_activations");
}

void set_supervised(Translator& keys, int64_t processes) {
  keys.set("algorithm.task", "sft", "SFTConfig");
  set_data(keys, "dataset_name", "data.sft");
  const int64_t device = keys.count("per_device_train_batch_size").value_or(8);
  const int64_t accumulated = keys.count("gradient_accumulation_steps").value_or(1);
  keys.set("train.batch_size", static_cast<double>(device * accumulated * processes),
           keys.from({"per_device_train_batch_size", "gradient_accumulation_steps"}) + "; x " +
               std::to_string(processes) + " processes");
  const int64_t longest = keys.count("max_length").value_or(1024);
  keys.set("data.max_length", static_cast<double>(longest),
           keys.has("max_length") ? keys.from({"max_length"}) : "TRL's default of max_length");
  keys.set("data.on_overlong", "truncate", "TRL keeps the first tokens");
  keys.set("train.tokens_per_micro_batch", static_cast<double>(device * longest),
           std::to_string(device) + " documents of max_length tokens");
  keys.set("data.chat_template", "model", "TRL renders the model's own template");
  if (!keys.has("learning_rate")) {
    keys.set("optimizer.learning_rate", "2e-5", "TRL's default of learning_rate");
  }
  if (!keys.has("lr_scheduler_type")) {
    keys.set("optimizer.lr_schedule", "linear", "TRL's default of lr_scheduler_type");
  }
  for (const char* name : {"assistant_only_loss", "completion_only_loss"}) {
    if (keys.flag(name) == false) {
      keys.leave(name, "only the completion, or what the assistant says, is learned");
    }
  }
  keys.leave("dataset_text_field", "a record has prompt and completion, or messages");
}

}  // namespace

void grpo_of_trl(Translator& keys, const std::string& prefix, int64_t per_step) {
  set_loss(keys, prefix, per_step);
  set_reward(keys, prefix);
  set_correction(keys, prefix);
  keys.same(prefix + "num_generations", "rollout.group_size");
  keys.same(prefix + "max_completion_length", "rollout.max_completion_tokens");
  keys.same(prefix + "temperature", "rollout.temperature");
  keys.same(prefix + "top_p", "rollout.top_p");
  if (keys.count(prefix + "top_k").value_or(0) > 0) {
    keys.same(prefix + "top_k", "rollout.top_k");
  } else {
    keys.leave_off(prefix + "top_k");
  }
  for (const char* name : {"min_p", "repetition_penalty"}) {
    if (const auto value = keys.number(prefix + name); value && *value != 0 && *value != 1) {
      keys.leave(prefix + name,
                 "the trainer needs the probabilities of the distribution that was sampled from");
    } else {
      keys.leave_off(prefix + name);
    }
  }
  const std::string thinking = prefix + "chat_template_kwargs.enable_thinking";
  if (const auto on = keys.flag(thinking)) {
    keys.set("data.template_options",
             std::string("{\"enable_thinking\": ") + (*on ? "true}" : "false}"),
             keys.from({thinking}));
  }
  for (const char* name :
       {"vllm_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
        "vllm_server_timeout", "vllm_group_port", "vllm_enable_sleep_mode", "vllm_max_model_length",
        "vllm_model_impl", "vllm_lora_sync", "vllm_sync_interval"}) {
    keys.leave(prefix + name, server_reason("vLLM"));
  }
  keys.same(prefix + "shuffle_dataset", "data.shuffle");
}

void from_trl(Translator& keys, bool supervised, int64_t processes) {
  const std::string launched = first_written(keys, {"num_processes", "nproc_per_node", "nproc"});
  const int64_t in_file = keys.count(launched).value_or(1);
  const int64_t all = processes > 0 ? processes : in_file;
  set_model(keys, "model_name_or_path");
  int64_t per_step = 1;
  if (supervised) {
    set_supervised(keys, all);
  } else {
    set_data(keys, "dataset_name", "data.train");
    keys.set("data.chat_template", "model", "TRL renders the model's own template");
    keys.set("data.answer_key", "solution", "the column that TRL's accuracy_reward reads");
    keys.same("max_prompt_length", "rollout.max_prompt_tokens");
    per_step = set_grpo_batch(keys, all);
    grpo_of_trl(keys, "", per_step);
  }
  set_run(keys, per_step, supervised);
  set_adapters(keys);
  set_model_options(keys);
  keys.same("adam_beta2", "optimizer.beta2");
  if (keys.has("fsdp") || keys.has("deepspeed")) {
    set_shards(keys, all, 1,
               keys.from({"fsdp", "deepspeed"}) + "; " + std::to_string(all) + " processes");
  }
  for (const char* name : {"dataset_config", "dataset_train_split", "dataset_test_split"}) {
    keys.leave(name, "data is named by its files");
  }
  keys.leave("config", "translate that file: ringside init --from FILE");
  keys.leave_all("model_init_kwargs", "Ringside reads the model itself");
  keys.leave("optim", "the optimizer is AdamW");
}

}  // namespace ringside::tools
