#include "engine/models/quantised_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::engine {
namespace {

std::vector<ParamSpec> without_projections(const std::vector<ParamSpec>& specs) {
  std::vector<ParamSpec> rest;
  for (const ParamSpec& spec : specs) {
    if (!is_projection(spec.name)) {
      rest.push_back(spec);
    }
  }
  return rest;
}

}  // namespace

QuantisedLayer::QuantisedLayer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               QuantisedFormat format, const ComputeContext& context)
    : config_(config),
      layer_(layer),
      compute_(context.compute),
      specs_(decoder_layer_specs(config, layer)),
      rest_(std::make_unique<ParamUnit>(unit.name(), without_projections(specs_), context)) {
  const at::NoGradGuard no_grad;
  rest_->freeze(compute_);
  const at::Tensor whole = unit.gather_flat();
  std::map<std::string, QuantisedMatrix> projections;
  std::size_t next = 0;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::string& name = specs_[i].name;
    if (is_projection(specs_[i].name)) {
      projections.emplace(name.substr(name.rfind('.', name.rfind('.') - 1) + 1),
                          QuantisedMatrix::of(unit.view_of(whole, i), format));
    } else {
      rest_->view(next++).copy_(unit.view_of(whole, i));
    }
  }
  const auto fused = [&](std::initializer_list<const char*> names) {
    auto packed = std::make_shared<PackedWeight>();
    for (const char* name : names) {
      packed->parts.push_back(projections.at(std::string(name) + ".weight"));
    }
    return packed;
  };
  qkv_ = fused({"q_proj", "k_proj", "v_proj"});
  o_ = fused({"o_proj"});
  gate_up_ = fused({"gate_proj", "up_proj"});
  down_ = fused({"down_proj"});
}

LayerWeights QuantisedLayer::weights() const {
  LayerWeights weights =
      materialize_layer(config_, layer_, *rest_, compute_, LayerParts::kWithoutProjections);
  weights.qkv_weight.packed = qkv_;
  weights.o_weight.packed = o_;
  weights.gate_up_weight.packed = gate_up_;
  weights.down_weight.packed = down_;
  return weights;
}

at::Tensor QuantisedLayer::unpack(at::ScalarType dtype) const {
  std::vector<at::Tensor> values;
  std::vector<const QuantisedMatrix*> projections;
  for (const Packed& packed : {qkv_, o_, gate_up_, down_}) {  // in the order of the specs
    for (const QuantisedMatrix& part : packed->parts) {
      projections.push_back(&part);
    }
  }
  std::size_t projection = 0, other = 0;
  for (const ParamSpec& spec : specs_) {
    const at::Tensor value = is_projection(spec.name) ? projections[projection++]->unpack(dtype)
                                                      : rest_->view(other++).to(dtype);
    values.push_back(value.reshape({-1}));
  }
  return at::cat(values);
}

}  // namespace ringside::engine
