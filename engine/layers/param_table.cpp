#include "engine/layers/param_table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::engine {
namespace {

// This rank's piece of a parameter.
std::vector<int64_t> own_shape(const TensorPlace& place, const TensorCut& cut,
                               const std::vector<int64_t>& whole) {
  return place.ranks > 1 && cut.is_cut() ? piece_shape(cut, whole, place.rank) : whole;
}

}  // namespace

Slot ParamTable::add(WeightSpec weight) {
  for (ParamSpec& param : weight.params) {
    param.cut = place_.ranks > 1 ? std::move(param.cut) : TensorCut{};
    if (param.cut.is_cut() != weight.is_cut()) {
      throw std::invalid_argument("layer: " + param.name + " and " + weight.params.front().name +
                                  " are one weight, and tensor-parallel ranks divide only one");
    }
  }
  weights_.push_back(std::move(weight));
  return weights_.size() - 1;
}

Slot ParamTable::add(const std::string& name, const std::vector<int64_t>& shape, WeightPlace place,
                     const TensorCut& cut) {
  return add({own_shape(place_, cut, shape), {{name, shape, false, cut}}, place});
}

Slot ParamTable::add_linear(std::vector<Projection> projections, int64_t inputs) {
  WeightSpec weight;
  weight.shape = {0, inputs};
  for (const auto& [module, outputs, cut] : projections) {
    const std::vector<int64_t> own = own_shape(place_, cut, {outputs, inputs});
    weight.shape = {weight.shape[0] + own[0], own[1]};
    if (cut.along != projections.front().cut.along) {
      throw std::invalid_argument("layer: " + module + " and " + projections.front().module +
                                  " are one weight, cut in two directions");
    }
    weight.params.push_back({module + ".weight", {outputs, inputs}, false, cut});
  }
  if (place_.ranks == 1) {
    for (Projection& projection : projections) {
      projection.cut = {};
    }
  }
  const Slot slot = add(std::move(weight));
  linears_.push_back({slot, inputs, std::move(projections)});
  return slot;
}

const LinearSpec* ParamTable::linear_of(Slot weight) const {
  const auto found = std::ranges::find(linears_, weight, &LinearSpec::weight);
  return found == linears_.end() ? nullptr : &*found;
}

Slot ParamTable::slot(const std::string& first_parameter) const {
  const auto found = std::ranges::find_if(weights_, [&](const WeightSpec& weight) {
    return weight.params.front().name == first_parameter;
  });
  if (found == weights_.end()) {
    throw std::out_of_range("the layer has no parameter " + first_parameter);
  }
  return static_cast<Slot>(found - weights_.begin());
}

}  // namespace ringside::engine
