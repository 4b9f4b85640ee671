#include "rl/config/other_systems.h"

#include <array>

namespace ringside::rl {
namespace {

// Systems: TRL 1.16.0, axolotl 0.19.0, torchtune 0.6.1, torchtitan 0.3.0, verl 0.9.1, prime-rl,
// OpenRLHF 0.11.2.
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
    Translation{"enable_rollout_routing_replay", "algorithm.router_replay: rollout"},
    Translation{"router_replay.mode", "algorithm.router_replay"},
    Translation{"moe_aux_loss_coeff", "model.router_aux_loss_coef"},
    Translation{"aux_loss_alpha", "model.router_aux_loss_coef"},
    Translation{"moe_router_bias_update_rate", "model.router_bias_update_rate"},
    Translation{"bias_update_factor", "model.router_bias_update_rate"},
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
    Translation{"rollout_rs",
                "algorithm.correction.mode: mask and .level (token_k1 = token, seq_sum_k1 = "
                "sequence, seq_mean_k1 = geometric)"},
    Translation{"rollout_rs_threshold",
                "algorithm.correction.low = 1 / its upper bound and .high = 1 / its lower bound "
                "(it bounds sampler / trainer)"},
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
    Translation{"ep_size", "parallel.expert_parallel_size"},
    Translation{"expert_parallel", "parallel.expert_parallel_size"},
    Translation{"expert_parallel_degree", "parallel.expert_parallel_size"},
    Translation{"expert_model_parallel_size", "parallel.expert_parallel_size"},
    Translation{"model.ep", "parallel.expert_parallel_size"},
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
    // TRL and transformers
    Translation{"num_train_epochs",
                "train.epochs (supervised; reinforcement learning counts train.steps)"},
    Translation{"fp16", "model.dtype: float16"},
    Translation{"lora_r", "lora.rank"},
    Translation{"lora_rank", "lora.rank"},
    Translation{"peft_config.r", "lora.rank"},
    Translation{"lora_alpha", "lora.alpha"},
    Translation{"lora_target_modules", "lora.target_modules"},
    Translation{"use_peft", "lora.rank (above 0)"},
    Translation{"use_vllm", "rollout.server: vllm"},
    Translation{"vllm_server_base_url", "rollout.server_options.url"},
    Translation{"vllm_server_host", "rollout.server_options.url"},
    Translation{"vllm_server_port", "rollout.server_options.url"},
    Translation{"log_completions", "log.rollouts"},
    Translation{"sync_ref_model", "algorithm.reference_update_every"},
    Translation{"ddp_timeout", "parallel.collective_timeout_s"},
    Translation{"fsdp",
                "parallel.data_parallel_shard_size (ranks that share one copy of the model)"},
    Translation{"fsdp_size", "parallel.data_parallel_shard_size"},
    // axolotl
    Translation{"num_epochs",
                "train.epochs (supervised; reinforcement learning counts train.steps)"},
    Translation{"lora_target_linear", "lora.target_modules: all-linear"},
    Translation{"lora_model_dir", "lora.path"},
    Translation{"sequence_len", "data.max_length"},
    Translation{"datasets", "data.sft or data.train"},
    Translation{"test_datasets", "data.sft_eval or data.eval"},
    // verl
    Translation{"total_epochs",
                "train.epochs (supervised; reinforcement learning counts train.steps)"},
    Translation{"default_local_dir", "the option --run-dir"},
    Translation{"filter_overlong_prompts", "data.on_overlong: drop"},
    Translation{"truncation", "data.on_overlong"},
    Translation{"custom_reward_function.path", "rollout.reward"},
    Translation{"optimizer_offload", "optimizer.offload: moments"},
    Translation{"param_offload", "model.offload_parameters, with optimizer.offload: full"},
    Translation{"val_before_train", "eval.before_training"},
    Translation{"entropy_from_logits_with_chunking", "model.logit_chunk_mb"},
    Translation{"shuffle_dataset", "data.shuffle"},
    // OpenRLHF
    Translation{"pretrain", "model.path"},
    Translation{"prompt_data", "data.train"},
    Translation{"input_key", "data.prompt_key"},
    Translation{"label_key", "data.answer_key"},
    Translation{"rollout_batch_size", "rollout.prompts_per_step"},
    Translation{"micro_train_batch_size", "train.tokens_per_micro_batch (in tokens)"},
    Translation{"num_episodes", "train.steps"},
    Translation{"init_kl_coef", "algorithm.kl_coef"},
    Translation{"vllm_num_engines", "rollout.num_workers"},
    Translation{"remote_rm_url", "rollout.reward_options.http_url"},
    Translation{"lambd", "algorithm.advantage.lambda"},
    Translation{"apply_chat_template", "data.chat_template"},
    Translation{"save_path", "the option --run-dir"},
    Translation{"adam_offload", "optimizer.offload: moments"},
    // torchtitan and torchtune
    Translation{"data_parallel_shard_degree", "parallel.data_parallel_shard_size"},
    Translation{"data_parallel_replicate_degree", "parallel.data_parallel_replicate_size"},
    Translation{"activation_checkpoint.mode", "model.recompute"},
    Translation{"enable_activation_checkpointing", "model.recompute"},
    Translation{"enable_activation_offloading", "model.offload_activations"},
    Translation{"min_lr_factor", "optimizer.min_lr_ratio"},
    Translation{"max_steps_per_epoch", "train.steps"},
    // prime-rl
    Translation{"rollouts_per_example", "rollout.group_size"},
    Translation{"async_level", "algorithm.max_staleness"},
    Translation{"max_async_level", "algorithm.max_staleness"},
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
    "tensor parallelism is not supported; parallel.ulysses_parallel_size and "
    "parallel.ringattn_parallel_size split the "
    "sequence, not the weights";
constexpr std::string_view kPacking =
    "documents are always packed: a micro-batch holds train.tokens_per_micro_batch tokens";
constexpr std::string_view kMachines =
    "the launcher says how many processes and machines a run has (--nproc, torchrun, Slurm), and "
    "parallel.* how they share the work";
constexpr std::string_view kResume =
    "the same command with the same --run-dir resumes from the newest checkpoint";
constexpr std::string_view kHub = "nothing is uploaded or downloaded; models and data are files";
constexpr std::string_view kSampling =
    "the trainer needs the probabilities of the distribution that was sampled from, so only "
    "rollout.temperature changes it";
constexpr std::string_view kAccumulation =
    "gradient accumulation is derived here from train.tokens_per_micro_batch and "
    "train.num_mini_batches";
constexpr std::string_view kEpochs =
    "train.epochs counts passes over data.sft; reinforcement learning counts train.steps, each of "
    "rollout.prompts_per_step prompts";

constexpr std::array kAbsent = {
    Absent{"rollout.tensor_model_parallel_size", kServer},
    Absent{"vllm_tensor_parallel_size", kServer},
    Absent{"gradient_accumulation", kAccumulation},
    Absent{"sample_packing", kPacking},
    Absent{"packing", kPacking},
    Absent{"use_dynamic_bsz", kPacking},
    Absent{"use_remove_padding", kPacking},
    Absent{"n_gpus_per_node", kMachines},
    Absent{"num_gpus_per_node", kMachines},
    Absent{"nnodes", kMachines},
    Absent{"num_processes", kMachines},
    Absent{"resume_from_checkpoint", kResume},
    Absent{"resume_mode", kResume},
    Absent{"auto_resume", kResume},
    Absent{"push_to_hub", kHub},
    Absent{"hub_model_id", kHub},
    Absent{"min_p", kSampling},
    Absent{"repetition_penalty", kSampling},
    Absent{"frequency_penalty", kSampling},
    Absent{"presence_penalty", kSampling},
    Absent{"logging_steps", "metrics are written at every step"},
    Absent{"liger", "kernels are chosen by the device"},
    Absent{"use_liger_kernel", "kernels are chosen by the device"},
    Absent{"lora_dropout", "dropout in adapters is not supported; expected no such key"},
    Absent{"project_name", kLogging},
    Absent{"experiment_name", kLogging},
    Absent{"run_name", kLogging},
    Absent{"trainer.logger", kLogging},
    Absent{"comet", kLogging},
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
    Absent{"pipeline_parallel", "pipeline parallelism is not supported"},
    Absent{"epochs", kEpochs},
    Absent{"load_in_4bit", kQuantised},
    Absent{"load_in_8bit", kQuantised},
    Absent{"allgather_logits",
           "logits are never gathered; each rank scores its own tokens exactly without"},
};

}  // namespace

std::span<const Translation> translations() { return kTranslations; }

std::span<const Absent> absent_features() { return kAbsent; }

}  // namespace ringside::rl
