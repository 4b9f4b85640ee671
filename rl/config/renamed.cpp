#include "rl/config/renamed.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "rl/rewards/edit_distance.h"

namespace ringside::rl {
namespace {

constexpr std::array kKeys = {
    RenamedKey{"algorithm.name", "algorithm.task (rl or sft)"},
    RenamedKey{"algorithm.dual_clip", "algorithm.ppo_clip.dual_clip"},
    RenamedKey{"algorithm.delta", "algorithm.ppo_clip.delta"},
    RenamedKey{"algorithm.cispo_bounds", "algorithm.cispo.bounds"},
    RenamedKey{"algorithm.sapo_tau_positive", "algorithm.sapo.tau_positive"},
    RenamedKey{"algorithm.sapo_tau_negative", "algorithm.sapo.tau_negative"},
    RenamedKey{"sp.reproducible", "sp.virtual_ranks"},
};

constexpr std::string_view kTask = "algorithm.task";
constexpr std::string_view kEstimator = "algorithm.advantage.estimator";
constexpr std::string_view kLoss = "algorithm.loss";
constexpr std::string_view kAggregation = "algorithm.loss_aggregation";
constexpr std::string_view kKl = "algorithm.kl_estimator";
constexpr std::string_view kSchedule = "optimizer.lr_schedule";

constexpr std::array kValues = {
    RenamedValue{kTask, "grpo", "rl (and algorithm.preset: grpo)"},
    RenamedValue{kTask, "ppo", "rl (and algorithm.preset: ppo)"},
    RenamedValue{kTask, "rloo", "rl (and algorithm.preset: rloo)"},
    RenamedValue{kEstimator, "grpo", "group_mean"},
    RenamedValue{kEstimator, "group_norm", "group_mean"},
    RenamedValue{kEstimator, "dr_grpo", "group_mean (and algorithm.advantage.std: none)"},
    RenamedValue{kEstimator, "grpo_passk", "pass_at_k"},
    RenamedValue{kEstimator, "reinforce_plus_plus",
                 "reinforce (and algorithm.advantage.whiten: tokens)"},
    RenamedValue{kEstimator, "reinforce_plus_plus_baseline",
                 "group_mean (or algorithm.preset: reinforce_pp_baseline)"},
    RenamedValue{kEstimator, "reinforce_baseline",
                 "group_mean (or algorithm.preset: reinforce_pp_baseline)"},
    RenamedValue{kLoss, "vanilla", "ppo_clip"},
    RenamedValue{kLoss, "ppo", "ppo_clip"},
    RenamedValue{kLoss, "grpo", "ppo_clip"},
    RenamedValue{kLoss, "gspo", "ppo_clip (and algorithm.importance_level: sequence)"},
    RenamedValue{kLoss, "gpg", "reinforce"},
    RenamedValue{kLoss, "geo_mean", "gmpo"},
    RenamedValue{kAggregation, "grpo", "seq_mean_token_mean"},
    RenamedValue{kAggregation, "dapo", "token_mean"},
    RenamedValue{kAggregation, "bnpo", "micro_batch_token_mean"},
    RenamedValue{kAggregation, "dr_grpo", "constant"},
    RenamedValue{kAggregation, "seq_mean_token_sum_norm", "constant"},
    RenamedValue{kKl, "kl", "k1"},
    RenamedValue{kKl, "mse", "k2"},
    RenamedValue{kKl, "low_var_kl", "k3"},
    RenamedValue{kKl, "k1+", "k1_straight"},
    RenamedValue{kKl, "abs+", "abs_straight"},
    RenamedValue{kKl, "k3+", "k3_straight"},
    RenamedValue{"algorithm.advantage.std", "true", "group"},
    RenamedValue{"algorithm.advantage.std", "false", "none"},
    RenamedValue{"algorithm.dynamic_sampling", "true", "refill"},
    RenamedValue{"algorithm.dynamic_sampling", "false", "none"},
    RenamedValue{"model.dtype", "bf16", "bfloat16"},
    RenamedValue{"model.dtype", "fp16", "float16"},
    RenamedValue{"model.dtype", "half", "float16"},
    RenamedValue{"model.dtype", "fp32", "float32"},
    RenamedValue{"model.dtype", "fp64", "float64"},
    RenamedValue{"parallel.reduce_dtype", "bf16", "bfloat16"},
    RenamedValue{"parallel.reduce_dtype", "fp32", "float32"},
    RenamedValue{"weights.publish_dtype", "bf16", "bfloat16"},
    RenamedValue{"weights.publish_dtype", "fp32", "float32"},
    RenamedValue{"model.recompute", "true", "full"},
    RenamedValue{"model.recompute", "false", "none"},
    RenamedValue{"model.device", "gpu", "cuda"},
    RenamedValue{"optimizer.offload", "cpu", "moments (or full)"},
    RenamedValue{"optimizer.offload", "true", "moments (or full)"},
    RenamedValue{"optimizer.offload", "false", "none"},
    RenamedValue{kSchedule, "constant_with_warmup", "constant (and optimizer.warmup_steps)"},
    RenamedValue{kSchedule, "cosine_with_min_lr", "cosine (and optimizer.min_lr_ratio)"},
    RenamedValue{"lora.base", "4bit", "nf4"},
    RenamedValue{"lora.base", "8bit", "int8"},
    RenamedValue{"data.chat_template", "tokenizer_default", "model"},
    RenamedValue{"data.chat_template", "default", "model"},
    RenamedValue{"data.chat_template", "qwen", "chatml"},
    RenamedValue{"rollout.server", "llama.cpp", "llama_cpp"},
    RenamedValue{"rollout.server", "hf", "embedded"},
    RenamedValue{"sp.ring_impl", "varlen_llama3", "all_gather"},
    RenamedValue{"sp.ring_impl", "llama3", "all_gather"},
    RenamedValue{"sp.ring_impl", "batch_ring", "p2p"},
    RenamedValue{"sp.ring_impl", "ring", "p2p"},
    RenamedValue{"sp.ring_impl", "zigzag", "p2p (and sp.placement: zigzag)"},
    RenamedValue{"log.level", "warning", "warn"},
};

std::string plain(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

}  // namespace

std::span<const RenamedKey> renamed_keys() { return kKeys; }

std::span<const RenamedValue> renamed_values() { return kValues; }

std::string value_suggestion(std::string_view key, std::string_view text,
                             std::span<const std::string_view> names) {
  const std::string word = plain(text);
  std::string_view best;
  for (const RenamedValue& value : kValues) {
    if (value.key == key && value.theirs == word) {
      best = value.ours;
    }
  }
  std::size_t nearest = 3;  // more wrong letters than this suggest nothing
  for (const std::string_view name : names) {
    const std::size_t distance = edit_distance(word, name);
    if (best.empty() && distance < std::min(nearest, name.size() / 2 + 1)) {
      nearest = distance;
      best = name;
    }
  }
  return best.empty() ? "" : "; did you mean " + std::string(best) + "?";
}

}  // namespace ringside::rl
