#include "engine/runner/layer_matrices.h"

#include <algorithm>

namespace ringside::engine {

std::vector<std::vector<std::size_t>> layer_matrices(HeadedModel& model) {
  const std::vector<ParamUnit*> units = model.units();
  std::vector<std::vector<std::size_t>> matrices(units.size());
  // Names no matrix of a unit that is not trained.
  const auto add = [&](const ParamUnit* unit, std::size_t dims) {
    const auto place = std::ranges::find(units, unit) - units.begin();
    for (std::size_t i = 0; place < std::ssize(units) && i < unit->specs().size(); ++i) {
      if (unit->specs()[i].shape.size() == dims) {
        matrices[place].push_back(i);
      }
    }
  };
  for (const Decoder* stage : model.stages()) {
    const DecoderUnits& parameters = stage->parameters();
    // Biases of experts in one tensor have two dims.
    const bool stacks = stage->config().experts.kind == ExpertKind::kClamped;
    const sp::Range& layers = stage->stage().layers;
    const int64_t further = stage->stage().predicts_further(stage->config()) ? 1 : 0;
    for (int64_t i = layers.begin; i < layers.end + further; ++i) {
      for (const ParamUnit* unit : parameters.layer_units(i)) {
        add(unit, 2);
      }
      for (const ParamUnit* unit : parameters.experts(i)) {
        add(unit, stacks ? 3 : 2);
      }
    }
  }
  return matrices;
}

}  // namespace ringside::engine
