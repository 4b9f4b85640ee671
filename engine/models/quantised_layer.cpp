#include "engine/models/quantised_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <utility>

#include "engine/layers/decoder_layer.h"

namespace ringside::engine {
namespace {

// The parameters of `unit`, of this layer, that no linear layer multiplies with.
std::vector<ParamSpec> without_projections(const ParamTable& table, const ParamUnit& unit) {
  std::vector<ParamSpec> rest;
  std::size_t param = 0;
  for (Slot slot = 0; slot < table.weights().size(); ++slot) {
    for (std::size_t i = 0; i < table.weights()[slot].params.size(); ++i, ++param) {
      if (table.linear_of(slot) == nullptr) {
        rest.push_back(unit.specs()[param]);
      }
    }
  }
  return rest;
}

}  // namespace

QuantisedLayer::QuantisedLayer(const DecoderLayer& layer, const ParamUnit& unit,
                               QuantisedFormat format, const ComputeContext& context)
    : layer_(layer),
      compute_(context.compute),
      rest_(std::make_unique<ParamUnit>(unit.name(), without_projections(layer.table(), unit),
                                        context)) {
  const at::NoGradGuard no_grad;
  rest_->freeze(compute_);
  const at::Tensor whole = unit.gathered().gather_flat();
  const ParamTable& table = layer.table();
  std::size_t param = 0, of_rest = 0;
  for (Slot slot = 0; slot < table.weights().size(); ++slot) {
    std::shared_ptr<PackedWeight> packed;
    if (table.linear_of(slot) != nullptr) {
      packed = std::make_shared<PackedWeight>();
    }
    for (std::size_t i = 0; i < table.weights()[slot].params.size(); ++i, ++param) {
      const at::Tensor values = unit.layout().view_of(whole, param);
      if (packed) {
        packed->parts.push_back(QuantisedMatrix::of(values, format));
      } else {
        rest_->view(of_rest++).copy_(values);
      }
    }
    packed_.push_back(std::move(packed));
  }
}

std::vector<Weight> QuantisedLayer::weights() const {
  UnitShapes cut{compute_, {}};
  for (Slot slot = 0; slot < packed_.size(); ++slot) {
    if (!packed_[slot]) {
      cut.shapes.push_back(layer_.table().weights()[slot].shape);
    }
  }
  const std::vector<Weight> rest = rest_->gathered().materialize(cut);
  std::vector<Weight> weights(packed_.size());
  std::size_t of_rest = 0;
  for (Slot slot = 0; slot < packed_.size(); ++slot) {
    if (packed_[slot]) {
      weights[slot].packed = packed_[slot];
    } else {
      weights[slot] = rest[of_rest++];
    }
  }
  return weights;
}

at::Tensor QuantisedLayer::unpack(at::ScalarType dtype) const {
  std::vector<at::Tensor> values;
  std::size_t of_rest = 0;
  for (Slot slot = 0; slot < packed_.size(); ++slot) {
    if (packed_[slot]) {
      for (const QuantisedMatrix& part : packed_[slot]->parts) {
        values.push_back(part.unpack(dtype).reshape({-1}));
      }
      continue;
    }
    for (std::size_t i = 0; i < layer_.table().weights()[slot].params.size(); ++i) {
      values.push_back(rest_->view(of_rest++).to(dtype).reshape({-1}));
    }
  }
  return at::cat(values);
}

}  // namespace ringside::engine
