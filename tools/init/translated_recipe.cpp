#include "tools/init/translated_recipe.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>

#include "tools/init/from_systems.h"

namespace ringside::tools {
namespace {

enum class System { kNone, kVerl, kTrl, kAxolotl, kOpenRlhf };

struct Origin {
  System system = System::kNone;
  bool supervised = false;
};

bool has_word(const ForeignConfig& config, std::string_view part) {
  return std::any_of(config.program.begin(), config.program.end(),
                     [&](const std::string& word) { return word.find(part) != std::string::npos; });
}

bool has_key(const ForeignConfig& config, std::initializer_list<std::string_view> names) {
  return std::any_of(config.values.begin(), config.values.end(), [&](const ForeignValue& value) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return value.key == name || (name.ends_with('.') && value.key.starts_with(name));
    });
  });
}

// By what a command line starts, else by keys that only one system has.
Origin origin_of(const ForeignConfig& config) {
  if (has_word(config, "sft_trainer")) {
    throw std::invalid_argument(config.file +
                                ": starts verl's supervised trainer, whose configuration is not "
                                "translated; expected that of main_ppo");
  }
  if (has_word(config, "verl") || has_word(config, "main_ppo") ||
      has_key(config, {"actor_rollout_ref."})) {
    return {System::kVerl};
  }
  if (has_word(config, "openrlhf") && !has_word(config, "train_ppo") &&
      !has_word(config, "train_sft")) {
    throw std::invalid_argument(config.file +
                                ": starts a trainer of OpenRLHF that has no counterpart; expected "
                                "train_ppo_ray or train_sft");
  }
  if (has_word(config, "openrlhf") ||
      has_key(config, {"pretrain", "actor.model_name_or_path", "prompt_data", "data.prompt_dataset",
                       "n_samples_per_prompt"})) {
    return {System::kOpenRlhf, has_word(config, "train_sft")};
  }
  if (has_word(config, "axolotl") || has_key(config, {"base_model"})) {
    return {System::kAxolotl};
  }
  const bool sampled =
      has_word(config, "grpo") || has_key(config, {"num_generations", "max_completion_length",
                                                   "reward_funcs", "beta", "epsilon"});
  if (has_word(config, "trl") || sampled ||
      has_key(config, {"model_name_or_path", "per_device_train_batch_size", "num_train_epochs"})) {
    return {System::kTrl, !sampled};
  }
  return {};
}

std::string scalar(const std::string& key, const std::string& text) {
  rl::Config config;
  for (const rl::Field& field : rl::fields_of(config)) {
    const bool words = std::holds_alternative<rl::TextSlot>(field.slot) ||
                       std::holds_alternative<rl::PathSlot>(field.slot);
    if (field.key == key && words && !text.starts_with("[")) {
      YAML::Emitter out;
      out << YAML::DoubleQuoted << text;
      return out.c_str();
    }
  }
  return text;
}

// Settings in the order of the defaults, as nested sections.
void write_settings(std::ostream& out, const std::vector<Setting>& settings) {
  std::map<std::string, const Setting*> by_key;
  for (const Setting& setting : settings) {
    by_key[setting.key] = &setting;
  }
  std::vector<std::string> open;  // sections that the last line stands in
  for (const std::string& key : rl::known_keys()) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) {
      continue;
    }
    std::vector<std::string> path;
    std::istringstream words(key);
    for (std::string word; std::getline(words, word, '.');) {
      path.push_back(word);
    }
    const std::string last = path.back();
    path.pop_back();
    const auto parts = std::mismatch(path.begin(), path.end(), open.begin(), open.end());
    for (auto part = parts.first; part != path.end(); ++part) {
      out << std::string(2 * static_cast<std::size_t>(part - path.begin()), ' ') << *part << ":\n";
    }
    open = path;
    out << std::string(2 * path.size(), ' ') << last << ": " << scalar(key, found->second->text)
        << "  # " << found->second->comment << "\n";
  }
}

std::vector<std::string> lines_of(const std::vector<LeftKey>& left) {
  std::vector<std::string> lines;
  const auto add = [&](LeftWhy why, const std::string& head) {
    bool first = true;
    for (const LeftKey& key : left) {
      if (key.why != why) {
        continue;
      }
      if (first) {
        lines.push_back(head);
        first = false;
      }
      lines.push_back("  " + key.what + (key.reason.empty() ? "" : ": " + key.reason));
    }
  };
  add(LeftWhy::kUnknown, "unknown here:");
  add(LeftWhy::kNoCounterpart, "not taken over:");
  add(LeftWhy::kDefault, "as here already, or off:");
  return lines;
}

}  // namespace

TranslatedRecipe translate_recipe(const ForeignConfig& config, int64_t processes) {
  const Origin origin = origin_of(config);
  TranslatedRecipe recipe;
  Translator keys(config);
  switch (origin.system) {
    case System::kNone:
      throw std::invalid_argument(
          config.file +
          ": is of no system that is known here; expected a configuration of verl "
          "(actor_rollout_ref...), TRL (model_name_or_path, num_generations), "
          "axolotl (base_model) or OpenRLHF (actor.model_name_or_path, pretrain)");
    case System::kVerl:
      recipe.system = "verl";
      from_verl(keys);
      break;
    case System::kTrl:
      recipe.system = "TRL";
      from_trl(keys, origin.supervised, processes);
      break;
    case System::kAxolotl:
      recipe.system = "axolotl";
      from_axolotl(keys, processes);
      break;
    case System::kOpenRlhf:
      recipe.system = "OpenRLHF";
      from_openrlhf(keys, origin.supervised);
      break;
  }
  keys.finish();
  if (!keys.mistakes().empty()) {
    std::string all;
    for (const std::string& mistake : keys.mistakes()) {
      all += (all.empty() ? "" : "\n") + mistake;
    }
    throw std::invalid_argument(all);
  }
  recipe.to_dos = keys.to_dos();
  recipe.left = lines_of(keys.left());
  recipe.left.insert(recipe.left.end(), config.remarks.begin(), config.remarks.end());
  recipe.taken = static_cast<int64_t>(keys.settings().size());
  std::ostringstream out;
  out << "# Translated by `ringside init --from "
      << std::filesystem::path(config.file).filename().string() << "` from " << recipe.system
      << ". Each comment names what its line comes from.\n"
      << "# Relative paths are relative to this file's folder.\n";
  for (const std::string& sentence : recipe.to_dos) {
    out << "# To do: " << sentence << "\n";
  }
  write_settings(out, keys.settings());
  if (!recipe.left.empty()) {
    out << "\n# Of " << recipe.system << "'s keys these are not in the recipe:\n";
    for (const std::string& line : recipe.left) {
      out << "# " << line << "\n";
    }
  }
  recipe.yaml = out.str();
  return recipe;
}

}  // namespace ringside::tools
