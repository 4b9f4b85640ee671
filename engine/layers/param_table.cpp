#include "engine/layers/param_table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::engine {

Slot ParamTable::add(WeightSpec weight) {
  weights_.push_back(std::move(weight));
  return weights_.size() - 1;
}

Slot ParamTable::add(const std::string& name, const std::vector<int64_t>& shape,
                     WeightPlace place) {
  return add({shape, {{name, shape}}, place});
}

Slot ParamTable::add_linear(std::vector<Projection> projections, int64_t inputs) {
  WeightSpec weight;
  int64_t outputs = 0;
  for (const Projection& projection : projections) {
    weight.params.push_back({projection.module + ".weight", {projection.outputs, inputs}});
    outputs += projection.outputs;
  }
  weight.shape = {outputs, inputs};
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
