// Rows and checks of each section of the configuration, one file a section (or a few small ones).
//
// A row is a key: its name, its member of Config (whose initialiser is the default), its bounds and
// a sentence. configs/defaults.yaml, the JSON Schema and `ringside check --defaults` are printed
// from the rows.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rl/config/checks.h"
#include "rl/config/data_files.h"
#include "rl/config/schema.h"

namespace ringside::rl {

// NumberRange of a number.
inline NumberRange at_least(double low) { return NumberRange{.low = low}; }
inline NumberRange above(double low) { return NumberRange{.low = low, .above = true}; }
inline NumberRange between(double low, double high) {
  return NumberRange{.low = low, .high = high};
}

// Collects the rows of all sections, in the order of configs/defaults.yaml.
class FieldList {
 public:
  // Each adds the row of a key: its member, its bounds or names, its sentence.
  void integer(std::string key, int64_t& value, NumberRange range, std::string sentence) {
    add(std::move(key), IntegerSlot{&value, range}, std::move(sentence));
  }
  void real(std::string key, double& value, NumberRange range, std::string sentence) {
    add(std::move(key), RealSlot{&value, range}, std::move(sentence));
  }
  void flag(std::string key, bool& value, std::string sentence) {
    add(std::move(key), BoolSlot{&value}, std::move(sentence));
  }
  void text(std::string key, std::string& value, std::string sentence,
            ResolvePaths resolve = nullptr) {
    add(std::move(key), TextSlot{&value, resolve}, std::move(sentence));
  }
  void path(std::string key, std::string& value, std::string sentence,
            ResolvePaths resolve = absolute_path) {
    add(std::move(key), PathSlot{&value, resolve}, std::move(sentence));
  }
  template <class E>
  void choice(std::string key, E& value, std::string sentence) {
    const auto& names = EnumNames<E>::kNames;
    add(std::move(key),
        ChoiceSlot{{names.begin(), names.end()},
                   [&value] { return to_string(value); },
                   [&value](std::size_t i) { value = static_cast<E>(i); }},
        std::move(sentence));
  }
  // One of these values of an enumeration.
  template <class E>
  void choice_among(std::string key, E& value, std::vector<E> values, std::string sentence) {
    std::vector<std::string_view> names;
    for (const E one : values) {
      names.push_back(to_string(one));
    }
    add(std::move(key),
        ChoiceSlot{std::move(names), [&value] { return to_string(value); },
                   [&value, values](std::size_t i) { value = values.at(i); }},
        std::move(sentence));
  }
  // The same, or nothing, by the word kAsModel.
  template <class E>
  void choice_or_model(std::string key, std::optional<E>& value, const std::vector<E>& values,
                       std::string sentence) {
    std::vector<std::optional<E>> all{std::nullopt};
    all.insert(all.end(), values.begin(), values.end());
    choice_among(std::move(key), value, std::move(all), std::move(sentence));
  }
  // value: the index of the word.
  void choice(std::string key, double& value, std::span<const std::string_view> words,
              std::string sentence) {
    add(std::move(key),
        ChoiceSlot{{words.begin(), words.end()},
                   [&value, words] { return words[static_cast<std::size_t>(value)]; },
                   [&value](std::size_t i) { value = static_cast<double>(i); }},
        std::move(sentence));
  }
  void choice(std::string key, std::string& value, std::vector<std::string_view> names,
              std::string sentence) {
    const auto set = [&value, names](std::size_t i) { value = std::string(names.at(i)); };
    add(std::move(key),
        ChoiceSlot{std::move(names), [&value] { return std::string_view(value); }, set},
        std::move(sentence));
  }
  // The sentence of a section.
  void section(std::string name, std::string sentence) {
    sections_.emplace(std::move(name), std::move(sentence));
  }
  // Marks keys of a section, of those added so far.
  // Throws: std::out_of_range for one that is not there.
  void often_set(std::string_view section, std::initializer_list<std::string_view> names);
  // Marks a key, or with a dot at its end the rows so far of a section.
  void may_change_on_resume(std::string_view key);

  // The rows and the sections' sentences; the list is empty afterwards. In every section come the
  // keys that are set often, then its other keys, then its own sections.
  std::vector<Field> take_fields() &&;
  SectionSentences take_sections() && { return std::move(sections_); }

 private:
  void add(std::string key, Slot slot, std::string sentence) {
    fields_.push_back({std::move(key), std::move(slot), std::move(sentence)});
  }

  std::vector<Field> fields_;
  SectionSentences sections_;
};

// Each adds the rows of a section.
void add_model_section(FieldList& fields, ModelConfig& model);
void add_data_section(FieldList& fields, DataConfig& data);
void add_rollout_section(FieldList& fields, RolloutConfig& rollout);
void add_algorithm_section(FieldList& fields, AlgorithmConfig& algorithm);
void add_training_sections(FieldList& fields, OptimizerConfig& optimizer, LoraConfig& lora,
                           TrainConfig& train);
void add_parallel_sections(FieldList& fields, ParallelConfig& parallel, SpConfig& sp);
void add_bridge_sections(FieldList& fields, BridgeConfig& bridge, WeightsConfig& weights);
void add_output_sections(FieldList& fields, CheckpointConfig& checkpoint, LogConfig& log,
                         EvalConfig& eval);

// Contradictions of a section's keys with each other and with other sections' keys. Each appends
// to `mistakes`.
void check_model_section(const Config& config, std::vector<Mistake>& mistakes);
void check_data_section(const Config& config, std::vector<Mistake>& mistakes);
void check_rollout_section(const Config& config, std::vector<Mistake>& mistakes);
void check_algorithm_section(const Config& config, std::vector<Mistake>& mistakes);
void check_training_sections(const Config& config, std::vector<Mistake>& mistakes);
void check_parallel_sections(const Config& config, std::vector<Mistake>& mistakes);
void check_bridge_sections(const Config& config, std::vector<Mistake>& mistakes);
void check_output_sections(const Config& config, std::vector<Mistake>& mistakes);

}  // namespace ringside::rl
