#include "rl/config/record_choices.h"

#include "rl/config/teacher.h"

namespace ringside::rl {
namespace {

constexpr const char* kSourceKey = "data.source_key";

}  // namespace

std::vector<RecordChoice> record_choices(const Config& config) {
  std::vector<RecordChoice> choices;
  if (!config.algorithm.distillation.teachers.empty()) {
    RecordChoice& choice = choices.emplace_back(
        RecordChoice{kSourceKey, config.data.source_key, "algorithm.distillation.teachers", {}});
    for (const TeacherEntry& teacher : teachers_of(config.algorithm.distillation)) {
      choice.words.push_back(teacher.source);
    }
  }
  return choices;
}

int64_t chosen_word(int64_t kind, std::span<const RecordChoice> choices, std::size_t choice) {
  for (std::size_t behind = choices.size() - 1; behind > choice; --behind) {
    kind /= static_cast<int64_t>(choices[behind].words.size());
  }
  return kind % static_cast<int64_t>(choices[choice].words.size());
}

int64_t teacher_of_kind(int64_t kind, const Config& config) {
  const auto choices = record_choices(config);
  for (std::size_t c = 0; c < choices.size(); ++c) {
    if (choices[c].key == kSourceKey) {
      return chosen_word(kind, choices, c);
    }
  }
  return 0;
}

}  // namespace ringside::rl
