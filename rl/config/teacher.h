// What a configuration's teacher takes part in. Torch-free.
// Thread safety: pure functions.
#pragma once

#include "rl/config/config.h"

namespace ringside::rl {

// Whether the policy is distilled from a teacher.
inline bool has_teacher(const AlgorithmConfig& config) {
  return !config.distillation.teacher.empty();
}

// Whether the teacher's log-probs of the sampled tokens are part of their advantages.
inline bool distils_samples(const AlgorithmConfig& config) {
  return has_teacher(config) && config.distillation.over == DistillationOver::kSampledToken;
}

// Whether the loss has a term of the whole distributions of policy and teacher.
inline bool distils_distributions(const AlgorithmConfig& config) {
  return has_teacher(config) && config.distillation.over != DistillationOver::kSampledToken;
}

// The reward of a run that learns from its teacher alone: 0 for every completion, without an
// answer.
inline constexpr const char* kNoReward = "none";

// Whether rewards have no part in what is learned: there are none, or they only show.
inline bool learns_from_teacher_alone(const Config& config) {
  return has_teacher(config.algorithm) &&
         (config.rollout.reward == kNoReward || config.algorithm.reward.scale == 0);
}

}  // namespace ringside::rl
