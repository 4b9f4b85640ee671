#include "rl/config/schema.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "rl/config/data_files.h"
#include "rl/config/eval_sets.h"
#include "rl/config/presets.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {
namespace {

Range at_least(double low) { return Range{.low = low}; }
Range above(double low) { return Range{.low = low, .above = true}; }
Range between(double low, double high) { return Range{.low = low, .high = high}; }

// rollout.reward with the files of Python functions as absolute paths.
std::string absolute_reward_files(const std::string& text, const std::filesystem::path& folder) {
  return with_reward_files(text,
                           [&](const std::string& file) { return absolute_path(file, folder); });
}

template <class T>
std::string number_text(T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  // A whole double keeps its point, so that it reads as a real number again.
  if (std::is_same_v<T, double> && text.find_first_not_of("-0123456789") == std::string::npos) {
    text += ".0";
  }
  return text;
}

class FieldList {
 public:
  void integer(std::string key, std::int64_t& value, Range range) {
    fields_.push_back({std::move(key), IntegerSlot{&value, range}});
  }
  void real(std::string key, double& value, Range range) {
    fields_.push_back({std::move(key), RealSlot{&value, range}});
  }
  void flag(std::string key, bool& value) { fields_.push_back({std::move(key), BoolSlot{&value}}); }
  void text(std::string key, std::string& value, ResolvePaths resolve = nullptr) {
    fields_.push_back({std::move(key), TextSlot{&value, resolve}});
  }
  void path(std::string key, std::string& value, ResolvePaths resolve = absolute_path) {
    fields_.push_back({std::move(key), PathSlot{&value, resolve}});
  }
  template <class E>
  void choice(std::string key, E& value) {
    const auto& names = EnumNames<E>::kNames;
    fields_.push_back(
        {std::move(key), ChoiceSlot{{names.begin(), names.end()},
                                    [&value] { return to_string(value); },
                                    [&value](std::size_t i) { value = static_cast<E>(i); }}});
  }
  void choice(std::string key, std::string& value, std::vector<std::string_view> names) {
    const auto set = [&value, names](std::size_t i) { value = std::string(names.at(i)); };
    fields_.push_back(
        {std::move(key),
         ChoiceSlot{std::move(names), [&value] { return std::string_view(value); }, set}});
  }

  std::vector<Field> take() && { return std::move(fields_); }

 private:
  std::vector<Field> fields_;
};

void add_model(FieldList& fields, ModelConfig& model) {
  fields.path("model.path", model.path);
  fields.choice("model.device", model.device);
  fields.choice("model.dtype", model.dtype);
  fields.path("model.reference_path", model.reference_path);
  fields.choice("model.init", model.init);
  fields.real("model.init_std", model.init_std, above(0));
  fields.choice("model.recompute", model.recompute);
  fields.flag("model.offload_activations", model.offload_activations);
  fields.flag("model.offload_parameters", model.offload_parameters);
  fields.integer("model.mlp_tile_tokens", model.mlp_tile_tokens, at_least(0));
  fields.integer("model.logit_chunk_mb", model.logit_chunk_mb, between(1, 1e6));
  fields.flag("model.fp32_norms", model.fp32_norms);
  fields.integer("model.max_document_tokens", model.max_document_tokens, at_least(0));
  fields.real("model.router_aux_loss_coef", model.router_aux_loss_coef, at_least(0));
  fields.real("model.router_bias_update_rate", model.router_bias_update_rate, at_least(0));
}

void add_data(FieldList& fields, DataConfig& data) {
  fields.path("data.train", data.train, absolute_data_files);
  fields.path("data.eval", data.eval, absolute_data_files);
  fields.path("data.sft", data.sft, absolute_data_files);
  fields.path("data.sft_eval", data.sft_eval, absolute_data_files);
  fields.integer("data.max_length", data.max_length, at_least(0));
  fields.text("data.prompt_key", data.prompt_key);
  fields.text("data.answer_key", data.answer_key);
  fields.text("data.completion_key", data.completion_key);
  fields.text("data.messages_key", data.messages_key);
  fields.choice("data.chat_template", data.chat_template);
  fields.text("data.template_options", data.template_options);
  fields.choice("data.text_prompts", data.text_prompts);
  fields.text("data.system_prompt", data.system_prompt);
  fields.text("data.prompt_suffix", data.prompt_suffix);
  fields.choice("data.on_overlong", data.on_overlong);
  fields.flag("data.shuffle", data.shuffle);
}

void add_rollout(FieldList& fields, RolloutConfig& rollout) {
  fields.integer("rollout.prompts_per_step", rollout.prompts_per_step, at_least(1));
  fields.integer("rollout.group_size", rollout.group_size, at_least(1));
  fields.integer("rollout.max_prompt_tokens", rollout.max_prompt_tokens, at_least(1));
  fields.integer("rollout.max_completion_tokens", rollout.max_completion_tokens, at_least(1));
  fields.real("rollout.temperature", rollout.temperature, above(0));
  fields.real("rollout.top_p", rollout.top_p, Range{.low = 0, .high = 1, .above = true});
  fields.integer("rollout.top_k", rollout.top_k, at_least(0));
  fields.text("rollout.stop", rollout.stop);
  fields.text("rollout.reward", rollout.reward, absolute_reward_files);
  fields.text("rollout.reward_separator", rollout.reward_separator);
  RewardOptionsConfig& options = rollout.reward_options;
  fields.real("rollout.reward_options.tolerance", options.tolerance, at_least(0));
  fields.text("rollout.reward_options.regex", options.regex);
  fields.path("rollout.reward_options.json_schema", options.json_schema);
  fields.integer("rollout.reward_options.repetition_ngram", options.repetition_ngram, at_least(1));
  fields.text("rollout.reward_options.code_command", options.code_command);
  fields.real("rollout.reward_options.code_timeout_s", options.code_timeout_s, above(0));
  fields.integer("rollout.reward_options.code_memory_mb", options.code_memory_mb, at_least(1));
  fields.text("rollout.reward_options.http_url", options.http_url);
  fields.real("rollout.reward_options.http_timeout_s", options.http_timeout_s, above(0));
  fields.text("rollout.reward_options.python_command", options.python_command);
  fields.integer("rollout.reward_options.python_processes", options.python_processes,
                 between(1, 64));
  fields.real("rollout.reward_options.python_timeout_s", options.python_timeout_s,
              Range{.low = 0, .high = 86400, .above = true});
  fields.choice("rollout.server", rollout.server);
  ServerConfig& server = rollout.server_options;
  fields.text("rollout.server_options.url", server.url);
  fields.path("rollout.server_options.api_key_file", server.api_key_file);
  fields.text("rollout.server_options.model", server.model);
  fields.integer("rollout.server_options.concurrency", server.concurrency, between(1, 4096));
  fields.choice("rollout.server_options.weights", server.weights);
  fields.path("rollout.server_options.weights_directory", server.weights_directory);
  fields.choice("rollout.server_options.pause", server.pause);
  fields.real("rollout.server_options.request_timeout_s", server.request_timeout_s, above(0));
  fields.real("rollout.server_options.load_timeout_s", server.load_timeout_s, above(0));
  fields.text("rollout.server_options.start_command", server.start_command);
  fields.integer("rollout.server_options.probe_tokens", server.probe_tokens, between(2, 1024));
  fields.real("rollout.server_options.probe_tolerance", server.probe_tolerance, above(0));
  fields.integer("rollout.num_workers", rollout.num_workers, between(1, 1024));
  fields.integer("rollout.worker_threads", rollout.worker_threads, between(1, 1024));
  fields.integer("rollout.max_steps_without_score", rollout.max_steps_without_score, at_least(0));
}

void add_policy_terms(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.real("algorithm.kl_coef", algorithm.kl_coef, at_least(0));
  fields.choice("algorithm.kl_in", algorithm.kl_in);
  fields.choice("algorithm.kl_to", algorithm.kl_to);
  fields.real("algorithm.kl_bound", algorithm.kl_bound, at_least(0));
  fields.real("algorithm.k3_bound", algorithm.k3_bound, at_least(0));
  fields.real("algorithm.kl_target", algorithm.kl_target, at_least(0));
  fields.integer("algorithm.kl_horizon", algorithm.kl_horizon, at_least(1));
  fields.choice("algorithm.kl_average", algorithm.kl_average);
  fields.integer("algorithm.reference_update_every", algorithm.reference_update_every, at_least(0));
  fields.real("algorithm.reference_mixup", algorithm.reference_mixup, between(0, 1));
  fields.real("algorithm.entropy_coef", algorithm.entropy_coef, at_least(0));
  fields.choice("algorithm.entropy_aggregation", algorithm.entropy_aggregation);
  fields.real("algorithm.entropy_target", algorithm.entropy_target, at_least(0));
  fields.real("algorithm.entropy_step", algorithm.entropy_step, at_least(0));
  fields.choice("algorithm.kl_estimator", algorithm.kl_estimator);
  fields.choice("algorithm.loss", algorithm.loss);
  fields.choice("algorithm.importance_level", algorithm.importance_level);
  fields.real("algorithm.clip_low", algorithm.clip_low, between(0, 1));
  fields.real("algorithm.clip_high", algorithm.clip_high, at_least(0));
  fields.real("algorithm.dual_clip", algorithm.dual_clip, at_least(0));
  fields.real("algorithm.delta", algorithm.delta, at_least(0));
  fields.choice("algorithm.cispo_bounds", algorithm.cispo_bounds);
  fields.real("algorithm.sapo_tau_positive", algorithm.sapo_tau_positive, above(0));
  fields.real("algorithm.sapo_tau_negative", algorithm.sapo_tau_negative, above(0));
  fields.real("algorithm.dppo_ratio_bound", algorithm.dppo_ratio_bound, at_least(0));
  fields.real("algorithm.clip_cov_ratio", algorithm.clip_cov_ratio, between(0, 1));
  fields.real("algorithm.clip_cov_lb", algorithm.clip_cov_lb, {});
  fields.real("algorithm.clip_cov_ub", algorithm.clip_cov_ub, {});
  fields.real("algorithm.kl_cov_ratio", algorithm.kl_cov_ratio, between(0, 1));
  fields.real("algorithm.ppo_kl_coef", algorithm.ppo_kl_coef, at_least(0));
  fields.choice("algorithm.loss_aggregation", algorithm.loss_aggregation);
  fields.real("algorithm.loss_divisor", algorithm.loss_divisor, at_least(0));
}

void add_advantage(FieldList& fields, RewardShapingConfig& reward, AdvantageConfig& advantage,
                   CriticConfig& critic) {
  fields.real("algorithm.reward.scale", reward.scale, {});
  fields.real("algorithm.reward.clip", reward.clip, at_least(0));
  fields.integer("algorithm.reward.overlong_buffer_tokens", reward.overlong_buffer_tokens,
                 at_least(0));
  fields.real("algorithm.reward.overlong_factor", reward.overlong_factor, at_least(0));
  fields.choice("algorithm.advantage.estimator", advantage.estimator);
  fields.choice("algorithm.advantage.std", advantage.std);
  fields.real("algorithm.advantage.eps", advantage.eps, at_least(0));
  fields.flag("algorithm.advantage.unbiased", advantage.unbiased);
  fields.choice("algorithm.advantage.whiten", advantage.whiten);
  fields.real("algorithm.advantage.whiten_eps", advantage.whiten_eps, at_least(0));
  fields.choice("algorithm.advantage.whiten_eps_in", advantage.whiten_eps_in);
  fields.real("algorithm.advantage.gamma", advantage.gamma, between(0, 1));
  fields.real("algorithm.advantage.lambda", advantage.lambda, between(0, 1));
  fields.path("algorithm.critic.model_path", critic.model_path);
  fields.real("algorithm.critic.learning_rate", critic.learning_rate, at_least(0));
  fields.real("algorithm.critic.value_clip", critic.value_clip, at_least(0));
  fields.integer("algorithm.critic.warmup_steps", critic.warmup_steps, at_least(0));
  fields.real("algorithm.critic.max_grad_norm", critic.max_grad_norm, at_least(0));
}

void add_algorithm(FieldList& fields, AlgorithmConfig& algorithm) {
  fields.choice("algorithm.name", algorithm.name);
  fields.choice("algorithm.preset", algorithm.preset, preset_names());
  add_policy_terms(fields, algorithm);
  add_advantage(fields, algorithm.reward, algorithm.advantage, algorithm.critic);
  fields.choice("algorithm.old_logprobs", algorithm.old_logprobs);
  fields.choice("algorithm.router_replay", algorithm.router_replay);
  fields.choice("algorithm.correction.mode", algorithm.correction.mode);
  fields.choice("algorithm.correction.level", algorithm.correction.level);
  fields.real("algorithm.correction.low", algorithm.correction.low, at_least(0));
  fields.real("algorithm.correction.high", algorithm.correction.high, above(0));
  fields.real("algorithm.correction.token_high", algorithm.correction.token_high, at_least(0));
  fields.real("algorithm.correction.opsm_delta", algorithm.correction.opsm_delta, at_least(0));
  fields.choice("algorithm.dynamic_sampling", algorithm.dynamic_sampling);
  fields.integer("algorithm.dynamic_sampling_rounds", algorithm.dynamic_sampling_rounds,
                 at_least(1));
  fields.integer("algorithm.num_iterations", algorithm.num_iterations, at_least(1));
  fields.integer("algorithm.max_staleness", algorithm.max_staleness, at_least(0));
  fields.flag("algorithm.mask_truncated", algorithm.mask_truncated);
}

void add_lora(FieldList& fields, LoraConfig& lora) {
  fields.integer("lora.rank", lora.rank, between(0, 65536));
  fields.real("lora.alpha", lora.alpha, above(0));
  fields.text("lora.target_modules", lora.target_modules);
  fields.path("lora.path", lora.path);
  fields.choice("lora.base", lora.base);
  fields.choice("lora.publish", lora.publish);
}

void add_optimizer(FieldList& fields, OptimizerConfig& optimizer) {
  const Range decay{.low = 0, .high = 1, .below = true};
  fields.real("optimizer.learning_rate", optimizer.learning_rate, at_least(0));
  fields.choice("optimizer.lr_schedule", optimizer.lr_schedule);
  fields.integer("optimizer.warmup_steps", optimizer.warmup_steps, at_least(0));
  fields.real("optimizer.min_lr_ratio", optimizer.min_lr_ratio, between(0, 1));
  fields.real("optimizer.beta1", optimizer.beta1, decay);
  fields.real("optimizer.beta2", optimizer.beta2, decay);
  fields.real("optimizer.eps", optimizer.eps, above(0));
  fields.real("optimizer.weight_decay", optimizer.weight_decay, at_least(0));
  fields.choice("optimizer.weight_decay_of", optimizer.weight_decay_of);
  fields.real("optimizer.max_grad_norm", optimizer.max_grad_norm, at_least(0));
  fields.choice("optimizer.offload", optimizer.offload);
}

void add_train(FieldList& fields, TrainConfig& train, ParallelConfig& parallel) {
  fields.integer("train.steps", train.steps, at_least(1));
  fields.integer("train.epochs", train.epochs, at_least(0));
  fields.integer("train.tokens_per_micro_batch", train.tokens_per_micro_batch, at_least(1));
  fields.integer("train.num_mini_batches", train.num_mini_batches, at_least(1));
  fields.integer("train.batch_size", train.batch_size, at_least(1));
  fields.integer("train.threads", train.threads, between(0, 1024));
  const Range size = between(1, 65536);
  fields.integer("parallel.data_parallel_replicate_size", parallel.data_parallel_replicate_size,
                 between(0, 65536));
  fields.integer("parallel.data_parallel_shard_size", parallel.data_parallel_shard_size, size);
  fields.integer("parallel.ringattn_parallel_size", parallel.ringattn_parallel_size, size);
  fields.integer("parallel.ulysses_parallel_size", parallel.ulysses_parallel_size, size);
  fields.integer("parallel.context_parallel_size", parallel.context_parallel_size,
                 between(0, 65536));
  fields.integer("parallel.expert_parallel_size", parallel.expert_parallel_size, size);
  fields.choice("parallel.cp_fsdp_mode", parallel.cp_fsdp_mode);
  fields.integer("parallel.zero_stage", parallel.zero_stage, between(1, 3));
  fields.choice("parallel.reduce_dtype", parallel.reduce_dtype);
  fields.choice("parallel.group_scope", parallel.group_scope);
  fields.real("parallel.collective_timeout_s", parallel.collective_timeout_s, above(0));
}

void add_sp(FieldList& fields, SpConfig& sp) {
  fields.choice("sp.method", sp.method);
  fields.choice("sp.ring_impl", sp.ring_impl);
  fields.choice("sp.ring_backward", sp.ring_backward);
  fields.flag("sp.async_ulysses", sp.async_ulysses);
  fields.flag("sp.shared_prefix", sp.shared_prefix);
  fields.choice("sp.placement", sp.placement);
  fields.integer("sp.heads_k_stride", sp.heads_k_stride, at_least(0));
  fields.integer("sp.reproducible", sp.reproducible, between(0, 1024));
  fields.path("sp.device_speeds", sp.device_speeds);
}

void add_bridge(FieldList& fields, BridgeConfig& bridge, WeightsConfig& weights) {
  fields.text("bridge.rollout_address", bridge.rollout_address);
  fields.text("bridge.weights_address", bridge.weights_address);
  fields.real("bridge.heartbeat_s", bridge.heartbeat_s, above(0));
  fields.real("bridge.worker_timeout_s", bridge.worker_timeout_s, above(0));
  fields.real("bridge.pause_timeout_s", bridge.pause_timeout_s,
              Range{.low = 0, .high = 1e9, .above = true});
  fields.real("bridge.assignment_timeout_s", bridge.assignment_timeout_s,
              Range{.low = 0.001, .high = 1e9});
  fields.integer("bridge.max_queued_mb", bridge.max_queued_mb, between(1, 1e9));
  fields.choice("bridge.journal_fsync", bridge.journal_fsync);
  fields.integer("bridge.journal_max_mb", bridge.journal_max_mb, between(0, 1e9));
  fields.path("bridge.curve.trainer_secret", bridge.curve.trainer_secret);
  fields.path("bridge.curve.allowed_workers", bridge.curve.allowed_workers);
  fields.path("bridge.curve.worker_secret", bridge.curve.worker_secret);
  fields.path("bridge.curve.trainer_public", bridge.curve.trainer_public);
  fields.choice("weights.publish_dtype", weights.publish_dtype);
  fields.choice("weights.encoding", weights.encoding);
  fields.integer("weights.full_every", weights.full_every, at_least(1));
  fields.flag("weights.shared_memory", weights.shared_memory);
  fields.path("weights.directory", weights.directory);
  fields.integer("weights.keep", weights.keep, at_least(0));
}

void add_outputs(FieldList& fields, Config& config) {
  fields.integer("checkpoint.every", config.checkpoint.every, at_least(0));
  fields.real("checkpoint.every_minutes", config.checkpoint.every_minutes, at_least(0));
  fields.integer("checkpoint.keep", config.checkpoint.keep, at_least(0));
  fields.flag("checkpoint.keep_best", config.checkpoint.keep_best);
  fields.text("checkpoint.best_metric", config.checkpoint.best_metric);
  fields.choice("log.level", config.log.level);
  fields.choice("log.progress", config.log.progress);
  fields.flag("log.rollouts", config.log.rollouts);
  fields.integer("log.samples", config.log.samples, at_least(0));
  fields.text("log.openmetrics", config.log.openmetrics);
  fields.path("eval.sets", config.eval.sets, absolute_eval_sets);
  fields.integer("eval.every", config.eval.every, at_least(0));
  fields.flag("eval.before_training", config.eval.before_training);
  fields.integer("eval.max_prompts", config.eval.max_prompts, at_least(0));
  fields.integer("eval.samples", config.eval.samples, between(1, 1024));
  fields.real("eval.temperature", config.eval.temperature, at_least(0));
  fields.choice("eval.by", config.eval.by);
  fields.real("eval.timeout_s", config.eval.timeout_s, Range{.low = 0, .high = 1e9, .above = true});
}

}  // namespace

bool Range::holds(double value) const {
  const bool over = above ? value > low : value >= low;
  const bool under = below ? value < high : value <= high;
  return over && under;
}

std::string Range::describe() const {
  const Range unbounded;
  const auto bound = [](double value) {
    return value == std::trunc(value) ? number_text(static_cast<std::int64_t>(value))
                                      : number_text(value);
  };
  std::string text;
  if (low != unbounded.low) {
    text = (above ? "above " : "at least ") + bound(low);
  }
  if (high != unbounded.high) {
    text += text.empty() ? "" : " and ";
    text += (below ? "below " : "at most ") + bound(high);
  }
  return text.empty() ? "a finite number" : text;
}

std::vector<Field> fields_of(Config& config) {
  FieldList fields;
  fields.integer("seed", config.seed, at_least(0));
  add_model(fields, config.model);
  add_data(fields, config.data);
  add_rollout(fields, config.rollout);
  add_algorithm(fields, config.algorithm);
  add_lora(fields, config.lora);
  add_optimizer(fields, config.optimizer);
  add_train(fields, config.train, config.parallel);
  add_sp(fields, config.sp);
  add_bridge(fields, config.bridge, config.weights);
  add_outputs(fields, config);
  return std::move(fields).take();
}

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = [] {
    Config config;
    std::vector<std::string> names;
    for (const Field& field : fields_of(config)) names.push_back(field.key);
    return names;
  }();
  return keys;
}

std::string value_text(const Slot& slot) {
  struct Writer {
    std::string operator()(const IntegerSlot& s) const { return number_text(*s.value); }
    std::string operator()(const RealSlot& s) const { return number_text(*s.value); }
    std::string operator()(const BoolSlot& s) const { return *s.value ? "true" : "false"; }
    std::string operator()(const TextSlot& s) const { return *s.value; }
    std::string operator()(const PathSlot& s) const { return *s.value; }
    std::string operator()(const ChoiceSlot& s) const { return std::string(s.get()); }
  };
  return std::visit(Writer{}, slot);
}

}  // namespace ringside::rl
