#include "rl/config/record_choices.h"

#include <string_view>
#include <utility>

#include "rl/config/adapter_names.h"
#include "rl/config/teacher.h"

namespace ringside::rl {
namespace {

constexpr const char* kAdapterKey = "data.adapter_key";
constexpr const char* kSourceKey = "data.source_key";

// Of the choice of this key; 0 where the records do not choose by it.
int64_t word_of_kind(int64_t kind, const Config& config, std::string_view key) {
  const auto choices = record_choices(config);
  for (std::size_t c = 0; c < choices.size(); ++c) {
    if (choices[c].key == key) {
      return chosen_word(kind, choices, c);
    }
  }
  return 0;
}

}  // namespace

std::optional<RecordChoice> adapter_choice(const Config& config) {
  std::vector<std::string> names = adapter_names(config.lora);
  if (names.empty()) {
    return std::nullopt;
  }
  return RecordChoice{kAdapterKey, config.data.adapter_key, "lora.adapters", std::move(names)};
}

std::vector<RecordChoice> record_choices(const Config& config) {
  std::vector<RecordChoice> choices;
  if (std::optional<RecordChoice> adapter = adapter_choice(config)) {
    choices.push_back(*std::move(adapter));
  }
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

int64_t adapter_of_kind(int64_t kind, const Config& config) {
  return word_of_kind(kind, config, kAdapterKey);
}

int64_t teacher_of_kind(int64_t kind, const Config& config) {
  return word_of_kind(kind, config, kSourceKey);
}

}  // namespace ringside::rl
