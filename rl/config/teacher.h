// Teachers of a configuration, and what they take part in. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// A teacher, and whose completions it judges.
struct TeacherEntry {
  std::string source;  // data.source_key of the records; empty: all of them
  std::string place;   // the directory of a model, or a server's address

  // Whether it is the address of a server: http:// or https://.
  bool is_server() const;
};

// The teachers of algorithm.distillation.teacher, or of teachers in their order; without either
// none.
// Throws: std::invalid_argument for a text that is not "SOURCE=PLACE, SOURCE=PLACE", and for a
// source that is there twice.
std::vector<TeacherEntry> teachers_of(const DistillationConfig& config);

// The texts of the two keys with absolute paths of models.
// Throws: as absolute_path(); the second as teachers_of() too.
std::string absolute_teacher(const std::string& text, const std::filesystem::path& folder);
std::string absolute_teachers(const std::string& text, const std::filesystem::path& folder);

// Whether a teacher answers over HTTP.
// Throws: as teachers_of().
bool has_server_teacher(const DistillationConfig& config);

// Whether the policy is distilled from a teacher.
inline bool has_teacher(const AlgorithmConfig& config) {
  return !config.distillation.teacher.empty() || !config.distillation.teachers.empty();
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
