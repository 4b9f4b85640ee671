// Preset tables for presets.h: the settings of each system or paper with their source.
#pragma once

#include <string_view>
#include <vector>

#include "rl/config/presets.h"

namespace ringside::rl {

struct Preset {
  std::string_view name;
  std::vector<std::string_view> bases;
  std::vector<PresetValue> values;
};

// The tables of presets, by where they come from; presets.cpp joins them.
std::vector<Preset> grpo_paper_presets();
std::vector<Preset> estimator_paper_presets();
std::vector<Preset> distillation_paper_presets();
std::vector<Preset> trl_presets();
std::vector<Preset> system_presets();
std::vector<Preset> asynchronous_system_presets();

}  // namespace ringside::rl
