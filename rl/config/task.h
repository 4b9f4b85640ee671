// What the values of algorithm.task have in common.
#pragma once

#include <string>

#include "rl/config/config.h"

namespace ringside::rl {

// Whether completions are sampled and judged. The other tasks learn from documents of files.
inline bool samples_completions(const Config& config) { return config.algorithm.task == Task::kRl; }

// Whether the task learns from pairs of a chosen and a rejected document.
inline bool learns_preferences(const Config& config) {
  return config.algorithm.task == Task::kDpo || config.algorithm.task == Task::kRewardModel;
}

// Whether a model that is not trained, or follows slowly, gives log-probs to compare with.
inline bool has_reference(const Config& config) {
  const AlgorithmConfig& algorithm = config.algorithm;
  const bool in_kl =
      samples_completions(config) && algorithm.kl_coef > 0 && algorithm.kl_to == KlTo::kReference;
  return in_kl || algorithm.task == Task::kDpo;
}

// Whether each group has one sample more, drawn greedily: its reward is the others' baseline, and
// it is not trained on. It is the last of its group.
inline bool has_greedy_sample(const Config& config) {
  return samples_completions(config) &&
         config.algorithm.advantage.estimator == AdvantageEstimator::kRemax;
}

// Samples that workers make of a prompt. All but a greedy one are trained on.
inline int64_t sampled_group_size(const Config& config) {
  return config.rollout.group_size + (has_greedy_sample(config) ? 1 : 0);
}

// Whether a critic is trained beside the policy.
inline bool has_critic(const Config& config) {
  return samples_completions(config) &&
         config.algorithm.advantage.estimator == AdvantageEstimator::kGae;
}

// Most tokens that a document may have; 0 = as many as a micro-batch. Of a rollout with its prompt.
inline int64_t longest_document(const Config& config) {
  return samples_completions(config)
             ? config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens
             : config.data.max_length;
}

// A key that names files, and its value.
struct NamedFiles {
  const char* key;
  const std::string& files;
};
// The files that are trained on.
inline NamedFiles training_files(const Config& config) {
  switch (config.algorithm.task) {
    case Task::kSft:
      return {"data.sft", config.data.sft};
    case Task::kDpo:
    case Task::kRewardModel:
      return {"data.preferences", config.data.preferences};
    default:
      return {"data.train", config.data.train};
  }
}

// The held-out files without a name of their own.
inline NamedFiles held_out_files(const Config& config) {
  switch (config.algorithm.task) {
    case Task::kSft:
      return {"data.sft_eval", config.data.sft_eval};
    case Task::kDpo:
    case Task::kRewardModel:
      return {"data.preferences_eval", config.data.preferences_eval};
    default:
      return {"data.eval", config.data.eval};
  }
}

// The figure that says how often the chosen document is above the rejected one, with TRL's name.
inline const char* preference_accuracy(const Config& config) {
  return config.algorithm.task == Task::kDpo ? "rewards/accuracies" : "accuracy";
}

}  // namespace ringside::rl
