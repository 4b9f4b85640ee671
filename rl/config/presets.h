// Presets: named sets of values for other keys, with the defaults of a paper or another system in
// Ringside's keys. A preset has no code of its own; it only sets keys that a recipe could set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct PresetValue {
  std::string_view key;    // dotted
  std::string_view value;  // as written in YAML
};

// The values that algorithm.preset accepts, "none" first.
std::vector<std::string_view> preset_names();

// The values of a preset, those of its bases first, so that a later entry for a key replaces an
// earlier one. Empty for "none".
// Throws: std::invalid_argument for a name that preset_names() does not list.
std::vector<PresetValue> preset_values(std::string_view name);

}  // namespace ringside::rl
