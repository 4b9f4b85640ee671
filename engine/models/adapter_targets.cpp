#include "engine/models/adapter_targets.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace ringside::engine {
namespace {

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string_view::npos
             ? ""
             : std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

}  // namespace

const std::vector<std::string>& adapter_targets() {
  static const std::vector<std::string> kTargets{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                 "gate_proj", "up_proj", "down_proj"};
  return kTargets;
}

const std::vector<std::string>& known_adapter_targets() {
  static const std::vector<std::string> kKnown = [] {
    std::vector<std::string> known = adapter_targets();
    known.insert(known.end(), {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
                               "qkv_proj", "gate_up_proj", "in_proj_qkvz", "in_proj_ba",
                               "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj",
                               "experts.gate_up_proj", "experts.down_proj"});
    return known;
  }();
  return kKnown;
}

std::vector<std::string> parse_adapter_targets(std::string_view text) {
  const std::vector<std::string>& known = known_adapter_targets();
  if (trimmed(text) == "all-linear") {
    return adapter_targets();
  }
  std::set<std::string> named;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = trimmed(text.substr(begin, end - begin));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string list;
      for (const std::string& one : known) {
        list += (list.empty() ? "" : ", ") + one;
      }
      throw std::invalid_argument("names the projection '" + name +
                                  "'; expected all-linear, or names out of " + list);
    }
    if (!named.insert(name).second) {
      throw std::invalid_argument("names the projection '" + name + "' twice");
    }
    begin = end + 1;
  }
  std::vector<std::string> names;
  std::copy_if(known.begin(), known.end(), std::back_inserter(names),
               [&](const std::string& name) { return named.contains(name); });
  return names;
}

}  // namespace ringside::engine
