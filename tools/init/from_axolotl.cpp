#include <algorithm>
#include <array>

#include "tools/init/common_keys.h"
#include "tools/init/from_systems.h"

namespace ringside::tools {
namespace {

// Optimizer steps of a step.
int64_t set_batch(Translator& keys, bool supervised, int64_t processes) {
  const int64_t device = keys.count("micro_batch_size").value_or(1);
  const int64_t accumulated = keys.count("gradient_accumulation_steps").value_or(1);
  const int64_t longest = keys.count("sequence_len").value_or(512);
  const std::string parts = keys.from({"micro_batch_size", "gradient_accumulation_steps"}) +
                            "; x " + std::to_string(processes) + " processes";
  keys.set("train.tokens_per_micro_batch", static_cast<double>(device * longest),
           std::to_string(device) + " documents of sequence_len tokens");
  if (supervised) {
    keys.set("train.batch_size", static_cast<double>(device * accumulated * processes), parts);
    keys.same("sequence_len", "data.max_length");
    keys.set("data.on_overlong",
             keys.text("excess_length_strategy") == "truncate" ? "truncate" : "drop",
             keys.has("excess_length_strategy") ? keys.from({"excess_length_strategy"})
                                                : "axolotl leaves out longer documents");
    if (keys.count("max_steps").value_or(-1) <= 0) {
      keys.same("num_epochs", "train.epochs");
    }
    return 1;
  }
  const auto generations = keys.count("trl.num_generations");
  const auto whole = keys.count("trl.generation_batch_size");
  set_quotient(
      keys, "rollout.prompts_per_step", whole.value_or(device * accumulated * processes),
      generations.value_or(8), "trl.num_generations", "prompts a step",
      (whole ? keys.from({"trl.generation_batch_size"}) : parts) + "; / " +
          (generations ? keys.from({"trl.num_generations"}) : "8 generations, TRL's default"));
  if (whole) {
    set_quotient(keys, "train.num_mini_batches", *whole, device * accumulated * processes,
                 "trl.generation_batch_size", "mini-batches a step",
                 keys.from({"trl.generation_batch_size"}) + "; / " + parts);
  }
  keys.leave("sequence_len",
             "rollout.max_prompt_tokens and rollout.max_completion_tokens bound a sample");
  const std::string mini = keys.value_of("train.num_mini_batches");
  return (mini.empty() ? 1 : std::stoll(mini)) *
         std::max<int64_t>(1, keys.count("trl.num_iterations").value_or(1));
}

// The first data set; the others are listed.
void set_datasets(Translator& keys, bool supervised) {
  const std::string first = "datasets.0.";
  set_data(keys, first + "path", supervised ? "data.sft" : "data.train");
  if (supervised) {
    keys.same(first + "field_messages", "data.messages_key");
    const std::string type = keys.text(first + "type").value_or("");
    if (type != "chat_template" && !type.empty()) {
      keys.leave(first + "type",
                 "a record has prompt and completion, or messages: rewrite it, or name its fields "
                 "in data.prompt_key and data.completion_key");
    }
  } else {
    keys.leave_all("datasets.0",
                   "prompts and answers are fields of a record: data.prompt_key, "
                   "data.answer_key");
  }
  keys.leave_all("datasets", "data.sft and data.train take a list of files with weights");
  keys.leave("val_set_size",
             "nothing is split off: put held-out records into a file of their own (data.eval, "
             "data.sft_eval)");
  const std::string shown = keys.text("chat_template").value_or("tokenizer_default");
  const bool known = shown == "chatml" || shown == "llama3";
  keys.set("data.chat_template", known ? shown : "model",
           keys.has("chat_template") ? keys.from({"chat_template"}) : "the model's own template");
}

void set_adapters(Translator& keys) {
  const std::string kind = keys.text("adapter").value_or("");
  const std::array<std::string_view, 2> low_rank = {"lora", "qlora"};
  if (kind.empty()) {
    keys.leave_all("lora_r", "adapter is not set");
    keys.leave("lora_alpha", "adapter is not set");
    return;
  }
  if (std::find(low_rank.begin(), low_rank.end(), kind) == low_rank.end()) {
    keys.mistake("adapter", "is \"" + kind + "\", expected lora or qlora");
    return;
  }
  keys.set("lora.rank", static_cast<double>(keys.count("lora_r").value_or(8)),
           keys.from({"adapter", "lora_r"}));
  keys.same("lora_alpha", "lora.alpha");
  keys.same("lora_model_dir", "lora.path");
  if (keys.flag("lora_target_linear").value_or(false)) {
    keys.set("lora.target_modules", "all-linear", keys.from({"lora_target_linear"}));
  } else {
    keys.same("lora_target_modules", "lora.target_modules");
  }
  if (kind == "qlora") {
    keys.set("lora.base", "nf4", keys.from({"adapter"}));
  } else {
    keys.choose("load_in_8bit", "lora.base", "int8", "");
  }
  if (keys.flag("load_in_4bit").value_or(false)) {
    keys.set("lora.base", "nf4", keys.from({"load_in_4bit"}));
  }
}

void set_training(Translator& keys, bool supervised, int64_t per_step) {
  if (keys.count("max_steps").value_or(-1) > 0) {
    set_steps(keys, "max_steps", "train.steps", per_step);
    keys.leave("num_epochs", "max_steps has it");
  } else if (!supervised) {
    steps_of_epochs(keys, "num_epochs", "rollout.prompts_per_step");
  }
  const std::string brain = keys.text("bf16").value_or("auto");
  const bool half = keys.flag("fp16").value_or(false);
  keys.set("model.dtype",
           half               ? "float16"
           : brain == "false" ? "float32"
                              : "bfloat16",
           keys.has("bf16") || half ? keys.from({"bf16", "fp16"}) : "axolotl's default of bf16");
  if (const auto recompute = keys.text("gradient_checkpointing")) {
    const bool off = *recompute == "false";
    keys.set("model.recompute", off ? "none" : "full", keys.from({"gradient_checkpointing"}));
    if (*recompute == "offload") {
      keys.set("model.offload_activations", "true", keys.from({"gradient_checkpointing"}));
    }
  }
  if (!keys.has("lr_scheduler")) {
    keys.set("optimizer.lr_schedule", "cosine", "axolotl's default of lr_scheduler");
  }
  keys.same("learning_rate", "optimizer.learning_rate");
  keys.same("warmup_steps", "optimizer.warmup_steps");
  if (!keys.has("warmup_steps")) {
    set_warmup_share(keys, "warmup_ratio", keys.number("warmup_ratio").value_or(0.03), per_step);
  }
  if (const auto optimizer = keys.text("optimizer");
      optimizer && optimizer->find("adamw") == std::string::npos) {
    keys.leave("optimizer", "the optimizer is AdamW");
  }
  for (const char* name : {"evals_per_epoch", "saves_per_epoch"}) {
    keys.leave(name,
               "eval.every and checkpoint.every count steps; checkpoint.every_minutes saves "
               "by time");
  }
}

}  // namespace

void from_axolotl(Translator& keys, int64_t processes) {
  const auto method = keys.text("rl");
  const bool supervised = !method;
  if (method && *method != "grpo") {
    keys.mistake("rl", "is \"" + *method +
                           "\", expected grpo, or no such key for supervised fine-tuning (learning "
                           "from preferences is not supported)");
    return;
  }
  const int64_t all = processes > 0 ? processes : 1;
  set_model(keys, "base_model");
  const int64_t per_step = set_batch(keys, supervised, all);
  if (supervised) {
    keys.set("algorithm.task", "sft", "no key `rl`");
  } else {
    keys.leave_off("rl");
    grpo_of_trl(keys, "trl.", per_step);
  }
  set_datasets(keys, supervised);
  set_adapters(keys);
  set_training(keys, supervised, per_step);
  const auto ring =
      keys.count(first_written(keys, {"context_parallel_size", "sequence_parallel_degree"}));
  if (ring.value_or(1) > 1) {
    keys.set("parallel.ringattn_parallel_size", static_cast<double>(*ring),
             keys.from({"context_parallel_size", "sequence_parallel_degree"}));
  }
  const int64_t tensor = keys.count("tensor_parallel_size").value_or(1);
  if (tensor > 1) {
    keys.set("parallel.tensor_parallel_size", static_cast<double>(tensor),
             keys.from({"tensor_parallel_size"}));
  }
  if (keys.has("fsdp") || keys.has("fsdp_config") || keys.has("deepspeed")) {
    set_shards(keys, all, ring.value_or(1) * tensor,
               keys.from({"fsdp", "deepspeed"}) + "; " + std::to_string(all) + " processes");
  }
  keys.leave_all("vllm", server_reason("vLLM"));
  keys.same("cosine_min_lr_ratio", "optimizer.min_lr_ratio");
  leave_known(keys,
              {{"dataset_prepared_path", "documents are tokenized when they are needed"},
               {"model_type", "config.json names the architecture"},
               {"tokenizer_type", "tokenizer.json is read"},
               {"strict", "unknown keys are always errors"},
               {"save_only_model", "checkpoints hold the optimizer too; checkpoint-final does not"},
               {"loss_watchdog_threshold", "RUN_DIR/warnings.log has alarms"},
               {"loss_watchdog_patience", "RUN_DIR/warnings.log has alarms"},
               {"gradient_checkpointing_kwargs", "model.recompute says all"}});
  keys.leave_all("special_tokens", "the tokenizer's files name them; nothing is padded");
  keys.leave_all("plugins", "plugins are axolotl's own");
}

}  // namespace ringside::tools
