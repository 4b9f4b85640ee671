// Named sets of values for other keys: what a paper or a neighbouring system runs by default, in
// Ringside's words. A preset is never a code path of its own; it only writes keys that a recipe
// could write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::rl {

struct PresetValue {
  std::string_view key;    // dotted
  std::string_view value;  // as written in YAML
};

// The words algorithm.preset accepts, "none" first.
std::vector<std::string_view> preset_names();

// The values of a preset, its bases' first, so that a later entry for a key replaces an earlier
// one; empty for "none". Throws std::invalid_argument for a name that preset_names() does not list.
std::vector<PresetValue> preset_values(std::string_view name);

}  // namespace ringside::rl
