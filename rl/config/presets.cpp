#include "rl/config/presets.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::rl {
namespace {

struct Preset {
  std::string_view name;
  std::vector<std::string_view> bases;
  std::vector<PresetValue> values;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = {
      {"none", {}, {}},
      // Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), section 4.1.1 and 4.2: per-completion
      // means (equation 3), KL coefficient 0.04 with the k3 estimator (equation 4), one update per
      // batch of samples. The paper does not state its clip range; 0.2 is PPO's.
      {"grpo",
       {},
       {{"algorithm.name", "grpo"},
        {"algorithm.kl_coef", "0.04"},
        {"algorithm.kl_estimator", "k3"},
        {"algorithm.clip_low", "0.2"},
        {"algorithm.clip_high", "0.2"},
        {"algorithm.loss_aggregation", "seq_mean_token_mean"},
        {"algorithm.advantage.std", "group"},
        {"algorithm.num_iterations", "1"}}},
      // TRL 1.16.0, the defaults of GRPOConfig. Its loss_type "dapo" divides by the completion
      // tokens of the whole batch over all processes, which is token_mean here; epsilon_high None
      // means epsilon.
      {"trl",
       {"grpo"},
       {{"algorithm.kl_coef", "0.0"},
        {"algorithm.kl_estimator", "k3_unbiased"},  // use_bias_correction_kl
        {"algorithm.loss_aggregation", "token_mean"},
        {"algorithm.advantage.eps", "1e-4"},
        {"algorithm.advantage.unbiased", "true"},
        {"algorithm.mask_truncated", "false"},
        {"rollout.group_size", "8"},
        {"rollout.max_completion_tokens", "512"},
        {"rollout.temperature", "1.0"},
        {"rollout.top_p", "1.0"},
        {"rollout.top_k", "0"},
        {"optimizer.learning_rate", "1e-6"},
        {"optimizer.lr_schedule", "linear"},
        {"optimizer.warmup_steps", "0"},
        {"optimizer.beta1", "0.9"},
        {"optimizer.beta2", "0.999"},
        {"optimizer.eps", "1e-8"},
        {"optimizer.weight_decay", "0.0"},
        {"optimizer.max_grad_norm", "1.0"}}},
  };
  return table;
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

std::vector<PresetValue> preset_values(std::string_view name) {
  const auto found = std::find_if(presets().begin(), presets().end(),
                                  [&](const Preset& preset) { return preset.name == name; });
  if (found == presets().end()) {
    throw std::invalid_argument("unknown preset \"" + std::string(name) + "\"");
  }
  std::vector<PresetValue> values;
  for (const std::string_view base : found->bases) {
    const auto inherited = preset_values(base);
    values.insert(values.end(), inherited.begin(), inherited.end());
  }
  values.insert(values.end(), found->values.begin(), found->values.end());
  return values;
}

}  // namespace ringside::rl
