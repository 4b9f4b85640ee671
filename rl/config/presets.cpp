#include "rl/config/presets.h"

#include <algorithm>
#include <stdexcept>

#include "rl/config/preset_tables.h"

namespace ringside::rl {
namespace {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = [] {
    std::vector<Preset> all = {{"none", {}, {}}};
    for (const auto& part :
         {grpo_paper_presets(), estimator_paper_presets(), distillation_paper_presets(),
          trl_presets(), system_presets(), asynchronous_system_presets()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
  }
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
