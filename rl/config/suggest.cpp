#include "rl/config/suggest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "rl/config/schema.h"
#include "rl/rewards/edit_distance.h"

namespace ringside::rl {
namespace {

std::string_view last_component(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::ptrdiff_t depth_of(std::string_view key) { return std::count(key.begin(), key.end(), '.'); }

struct Translation {
  std::string_view theirs;  // matched against the end of the unknown key, at a dot
  std::string_view ours;
};

// Longer names first where one ends in another. Systems: TRL 1.16.0, axolotl 0.19.0, torchtune
// 0.6.1, torchtitan 0.3.0, verl 0.9.1, prime-rl, OpenRLHF 0.11.2.
constexpr std::array kTranslations = {
    Translation{"model_name_or_path", "model.path"},
    Translation{"base_model", "model.path"},
    Translation{"checkpointer.checkpoint_dir", "model.path"},
    Translation{"hf_assets_path", "model.path"},
    Translation{"actor_rollout_ref.model.path", "model.path"},
    Translation{"torch_dtype", "model.dtype"},
    Translation{"bf16", "model.dtype: bfloat16"},
    Translation{"gradient_checkpointing", "model.recompute"},
    Translation{"enable_gradient_checkpointing", "model.recompute"},
    Translation{"lr", "optimizer.learning_rate"},
    Translation{"lr_scheduler_type", "optimizer.lr_schedule"},
    Translation{"lr_scheduler", "optimizer.lr_schedule"},
    Translation{"adam_beta1", "optimizer.beta1"},
    Translation{"adam_beta2", "optimizer.beta2"},
    Translation{"adam_epsilon", "optimizer.eps"},
    Translation{"warmup_ratio", "optimizer.warmup_steps (a number of optimizer steps)"},
    Translation{"lr_warmup_steps", "optimizer.warmup_steps"},
    Translation{"grad_clip", "optimizer.max_grad_norm"},
    Translation{"clip_grad_norm", "optimizer.max_grad_norm"},
    Translation{"max_norm", "optimizer.max_grad_norm"},
    Translation{"generation_batch_size", "rollout.prompts_per_step (in prompts, not samples)"},
    Translation{"train_batch_size", "rollout.prompts_per_step"},
    Translation{"num_prompts_per_train_step", "rollout.prompts_per_step"},
    Translation{"orchestrator.batch_size", "rollout.prompts_per_step"},
    Translation{"rollout.batch_size", "rollout.prompts_per_step"},
    Translation{"num_generations", "rollout.group_size"},
    Translation{"grpo_samples", "rollout.group_size"},
    Translation{"num_samples_per_prompt", "rollout.group_size"},
    Translation{"n_samples_per_prompt", "rollout.group_size"},
    Translation{"rollout.n", "rollout.group_size"},
    Translation{"max_prompt_length", "rollout.max_prompt_tokens"},
    Translation{"data.max_len", "rollout.max_prompt_tokens"},
    Translation{"max_completion_length", "rollout.max_completion_tokens"},
    Translation{"max_response_length", "rollout.max_completion_tokens"},
    Translation{"max_generated_tokens", "rollout.max_completion_tokens"},
    Translation{"max_new_tokens", "rollout.max_completion_tokens"},
    Translation{"ppo_mini_batch_size", "train.num_mini_batches (a count, not a size)"},
    Translation{"ppo_batch_size", "train.num_mini_batches (a count, not a size)"},
    Translation{"gradient_accumulation_steps",
                "derived here from train.tokens_per_micro_batch and train.num_mini_batches"},
    Translation{"gradient_accumulation",
                "derived here from train.tokens_per_micro_batch and train.num_mini_batches"},
    Translation{"per_device_train_batch_size", "train.tokens_per_micro_batch (in tokens)"},
    Translation{"micro_batch_size", "train.tokens_per_micro_batch (in tokens)"},
    Translation{"forward_batch_size", "train.tokens_per_micro_batch (in tokens)"},
    Translation{"ppo_micro_batch_size_per_gpu", "train.tokens_per_micro_batch (in tokens)"},
    Translation{"ppo_max_token_len_per_gpu", "train.tokens_per_micro_batch"},
    Translation{"num_tokens_per_microbatch_per_dp_rank", "train.tokens_per_micro_batch"},
    Translation{"max_tokens_per_gpu", "train.tokens_per_micro_batch"},
    Translation{"seq_len", "train.tokens_per_micro_batch"},
    Translation{"max_steps", "train.steps"},
    Translation{"total_training_steps", "train.steps"},
    Translation{"epsilon", "algorithm.clip_low and algorithm.clip_high"},
    Translation{"epsilon_high", "algorithm.clip_high"},
    Translation{"ratio_clip_low", "algorithm.clip_low"},
    Translation{"ratio_clip_high", "algorithm.clip_high"},
    Translation{"clip_ratio", "algorithm.clip_low and algorithm.clip_high"},
    Translation{"clip_ratio_low", "algorithm.clip_low"},
    Translation{"clip_ratio_high", "algorithm.clip_high"},
    Translation{"eps_clip", "algorithm.clip_low and algorithm.clip_high"},
    Translation{"eps_clip_low_high", "algorithm.clip_low and algorithm.clip_high"},
    Translation{"beta", "algorithm.kl_coef"},
    Translation{"kl_coeff", "algorithm.kl_coef"},
    Translation{"kl_loss_coef", "algorithm.kl_coef"},
    Translation{"kl.init_coef", "algorithm.kl_coef"},
    Translation{"kl_loss_type", "algorithm.kl_estimator"},
    Translation{"kl.estimator", "algorithm.kl_estimator"},
    Translation{"loss_type", "algorithm.loss_aggregation"},
    Translation{"loss_agg_mode", "algorithm.loss_aggregation"},
    Translation{"adv_estimator", "algorithm.advantage.estimator"},
    Translation{"advantage_estimator", "algorithm.advantage.estimator"},
    Translation{"importance_sampling_level", "algorithm.importance_level"},
    Translation{"clip_ratio_c", "algorithm.dual_clip"},
    Translation{"use_kl_in_reward", "algorithm.kl_in: reward"},
    Translation{"entropy_coeff", "algorithm.entropy_coef"},
    Translation{"reward_weights", "rollout.reward (\"name * weight, name * weight\")"},
    Translation{"reward_funcs", "rollout.reward"},
    Translation{"ref_model_sync_steps", "algorithm.reference_update_every"},
    Translation{"ref_model_mixup_alpha", "algorithm.reference_mixup"},
    Translation{"off_policy_mask_threshold", "algorithm.correction.opsm_delta"},
    Translation{"vllm_importance_sampling_clip_max", "algorithm.correction.high"},
    Translation{"vllm_importance_sampling_clip_min", "algorithm.correction.low"},
    Translation{"vllm_importance_sampling_mode", "algorithm.correction.mode and .level"},
    Translation{"rollout_is_threshold", "algorithm.correction.high"},
    Translation{"rollout_is", "algorithm.correction.mode: tis and .level"},
    Translation{"behav_imp_weight_cap", "algorithm.correction.high"},
    Translation{"cliprange_value", "algorithm.critic.value_clip"},
    Translation{"critic_warmup", "algorithm.critic.warmup_steps"},
    Translation{"filter_groups.enable", "algorithm.dynamic_sampling"},
    Translation{"lam", "algorithm.advantage.lambda"},
    Translation{"max_head_offpolicyness", "algorithm.max_staleness"},
    Translation{"scale_rewards", "algorithm.advantage.std"},
    Translation{"norm_adv_by_std_in_grpo", "algorithm.advantage.std"},
    Translation{"no_std_norm", "algorithm.advantage.std"},
    Translation{"ppo_epochs", "algorithm.num_iterations"},
    Translation{"max_epochs", "algorithm.num_iterations"},
    Translation{"mask_truncated_completions", "algorithm.mask_truncated"},
    Translation{"max_off_policy_steps", "algorithm.max_staleness"},
    Translation{"max_off_policy_threshold", "algorithm.max_staleness"},
    Translation{"target_offpolicy_steps", "algorithm.max_staleness"},
    Translation{"vllm_importance_sampling_correction", "algorithm.correction.mode"},
    Translation{"ulysses_sequence_parallel_size", "parallel.ulysses_parallel_size"},
    Translation{"parallelism_config_sp_size", "parallel.ulysses_parallel_size"},
    Translation{"parallelism_config_cp_size", "parallel.ringattn_parallel_size"},
    Translation{"cp_size", "parallel.context_parallel_size"},
    Translation{"context_parallel_degree", "parallel.ringattn_parallel_size"},
    Translation{"sequence_parallel_degree", "parallel.ringattn_parallel_size"},
    Translation{"ring_attn_size", "parallel.ringattn_parallel_size"},
    Translation{"model.cp", "parallel.ringattn_parallel_size"},
    Translation{"save_steps", "checkpoint.every"},
    Translation{"save_freq", "checkpoint.every"},
    Translation{"checkpoint.interval", "checkpoint.every"},
    Translation{"ckpt.interval", "checkpoint.every"},
    Translation{"keep_last", "checkpoint.keep"},
    Translation{"keep_latest_k", "checkpoint.keep"},
    Translation{"save_total_limit", "checkpoint.keep"},
    Translation{"max_actor_ckpt_to_keep", "checkpoint.keep"},
    Translation{"eval_steps", "eval.every"},
    Translation{"test_freq", "eval.every"},
    Translation{"output_dir", "the option --run-dir"},
    Translation{"data.path", "data.train"},
    Translation{"dataset", "data.train"},
    Translation{"dataset_name", "data.train (a JSONL file)"},
    Translation{"dataset_path", "data.train"},
    Translation{"train_files", "data.train"},
    Translation{"val_files", "data.eval"},
    Translation{"eval.steps", "eval.every"},
    Translation{"eval.interval", "eval.every"},
};

// Features of other systems that are not here, by words of their keys, and what to do instead.
struct Absent {
  std::string_view word;  // whole words of the key, where '.' and '_' separate words
  std::string_view sentence;
};

constexpr std::string_view kLora =
    "low-rank adapters are set by lora.rank (above 0), lora.alpha, lora.target_modules, lora.path, "
    "lora.base and lora.publish; adapters of other kinds are not supported";
constexpr std::string_view kQuantised =
    "weights are quantised by lora.base (nf4, int8), together with adapters (lora.rank above 0)";
constexpr std::string_view kSharding =
    "sharding is set by parallel.data_parallel_shard_size, parallel.cp_fsdp_mode and "
    "parallel.zero_stage, offload by optimizer.offload";
constexpr std::string_view kLogging =
    "experiment trackers are not supported; metrics are in RUN_DIR/metrics.jsonl and "
    "RUN_DIR/tensorboard";
constexpr std::string_view kServer =
    "Ringside does not start the inference server; give this option to the server itself "
    "(rollout.server_options.url says "
    "where it listens)";
constexpr std::string_view kAttention =
    "there is one attention implementation a device, and it is always used";
constexpr std::string_view kTensorParallel =
    "tensor parallelism does not exist here; parallel.ulysses_parallel_size and "
    "parallel.ringattn_parallel_size split the "
    "sequence, not the weights";
constexpr std::string_view kEpochs =
    "train.epochs counts passes over data.sft; reinforcement learning counts train.steps, each of "
    "rollout.prompts_per_step prompts";

constexpr std::array kAbsent = {
    Absent{"lora", kLora},
    Absent{"peft", kLora},
    Absent{"qlora", kLora},
    Absent{"adapter", kLora},
    Absent{"fsdp", kSharding},
    Absent{"fsdp2", kSharding},
    Absent{"deepspeed", kSharding},
    Absent{"zero_stage", kSharding},
    Absent{"wandb", kLogging},
    Absent{"report_to", kLogging},
    Absent{"mlflow", kLogging},
    Absent{"gpu_memory_utilization", kServer},
    Absent{"enforce_eager", kServer},
    Absent{"max_model_len", kServer},
    Absent{"attn_implementation", kAttention},
    Absent{"attn_impl", kAttention},
    Absent{"flash_attention", kAttention},
    Absent{"flash_attention_2", kAttention},
    Absent{"tensor_parallel", kTensorParallel},
    Absent{"tensor_model_parallel", kTensorParallel},
    Absent{"tp_size", kTensorParallel},
    Absent{"pipeline_parallel", "pipeline parallelism does not exist here"},
    Absent{"expert_parallel", "expert parallelism does not exist here"},
    Absent{"epochs", kEpochs},
    Absent{"load_in_4bit", kQuantised},
    Absent{"load_in_8bit", kQuantised},
    Absent{"allgather_logits",
           "logits are never gathered; each rank scores its own tokens exactly without"},
};

bool ends_at_dot(std::string_view key, std::string_view suffix) {
  if (!key.ends_with(suffix)) return false;
  return key.size() == suffix.size() || key[key.size() - suffix.size() - 1] == '.';
}

bool is_separator(char c) { return c == '.' || c == '_'; }

// Whether `word` stands in the key between separators or ends.
bool has_word(std::string_view key, std::string_view word) {
  for (std::size_t at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || is_separator(key[at - 1])) && (end == key.size() || is_separator(key[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string absent_feature(std::string_view unknown) {
  for (const Absent& feature : kAbsent) {
    if (has_word(unknown, feature.word)) {
      return std::string(feature.sentence);
    }
  }
  return "";
}

std::string nearest_key(std::string_view unknown) {
  const std::string_view leaf = last_component(unknown);
  std::string best;
  std::size_t best_distance = std::string::npos;
  for (const std::string& key : known_keys()) {
    const std::size_t whole = edit_distance(unknown, key);
    // A leaf in the wrong section counts one more than the same typo in the right section.
    const std::size_t part = edit_distance(leaf, last_component(key)) + 1;
    const std::size_t distance = std::min(whole, part);
    const std::size_t limit = std::max<std::size_t>(2, leaf.size() / 3);
    // Of equally near keys, the one with fewer levels.
    const bool shallower = distance == best_distance && depth_of(key) < depth_of(best);
    if (distance <= limit && (distance < best_distance || shallower)) {
      best = key;
      best_distance = distance;
    }
  }
  return best;
}

std::string translate(std::string_view unknown) {
  const Translation* best = nullptr;
  for (const Translation& entry : kTranslations) {
    const bool longer = best == nullptr || entry.theirs.size() > best->theirs.size();
    if (longer && ends_at_dot(unknown, entry.theirs)) best = &entry;
  }
  return best == nullptr ? "" : std::string(best->ours);
}

std::string suggestion(std::string_view unknown) {
  if (const std::string absent = absent_feature(unknown); !absent.empty()) {
    return "unknown key; " + absent;
  }
  const std::string translated = translate(unknown);
  const std::string nearest = nearest_key(unknown);
  std::string text = "unknown key";
  if (!translated.empty()) {
    text += "; \"" + std::string(last_component(unknown)) + "\" of other systems is " + translated;
    if (translated.starts_with("derived")) return text;
  }
  const bool exact =
      known_keys().end() != std::find(known_keys().begin(), known_keys().end(), translated);
  if (!nearest.empty() && !exact && !translated.starts_with(nearest)) {
    text += "; did you mean " + nearest + "?";
  }
  if (translated.empty() && nearest.empty()) {
    text += "; `ringside check --defaults` lists every key";
  }
  return text;
}

}  // namespace ringside::rl
