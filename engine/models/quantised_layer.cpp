#include "engine/models/quantised_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <utility>

#include "engine/layers/decoder_layer.h"
#include "engine/models/decoder_units.h"

namespace ringside::engine {
namespace {

// The layer's weights but experts, in the order of DecoderLayer::specs().
std::vector<Slot> slots_in_order(const DecoderLayer& layer) {
  std::vector<Slot> slots;
  for (const std::vector<Slot>& of_unit : layer.unit_slots()) {
    slots.insert(slots.end(), of_unit.begin(), of_unit.end());
  }
  return slots;
}

// This rank's pieces of the parameters that no linear layer multiplies with.
std::vector<ParamSpec> without_projections(const DecoderLayer& layer) {
  const ParamTable& table = layer.table();
  const std::vector<ParamSpec> specs = layer.specs();
  std::vector<ParamSpec> rest;
  std::size_t param = 0;
  for (const Slot slot : slots_in_order(layer)) {
    for (std::size_t i = 0; i < table.weights()[slot].params.size(); ++i, ++param) {
      if (table.linear_of(slot) == nullptr) {
        const auto& [name, shape, in_fp32, cut] = specs[param];
        rest.push_back(
            {name, cut.is_cut() ? piece_shape(cut, shape, table.place().rank) : shape, in_fp32});
      }
    }
  }
  return rest;
}

}  // namespace

std::string packed_cut_problem(const ModelConfig& config, QuantisedFormat format, int64_t ranks) {
  for (const DecoderLayer& layer : make_layers(config, {0, ranks})) {
    for (const LinearSpec& linear : layer.table().linears()) {
      for (const ParamSpec& spec : layer.table().weights()[linear.weight].params) {
        const std::string problem =
            QuantisedMatrix::cut_problem(spec.shape[0], spec.shape[1], format, spec.cut);
        if (!problem.empty()) {
          return spec.name + ": " + problem;
        }
      }
    }
  }
  return "";
}

QuantisedLayer::QuantisedLayer(const DecoderLayer& layer, const ParamUnit& unit,
                               QuantisedFormat format, const ComputeContext& context)
    : layer_(layer),
      context_(context),
      rest_(std::make_unique<ParamUnit>(unit.name(), without_projections(layer),
                                        unsharded_context(context))),
      packed_(layer.table().weights().size()) {
  const at::NoGradGuard no_grad;
  rest_->freeze(context.compute);
  const at::Tensor whole = unit.gathered().gather_flat();
  const ParamTable& table = layer.table();
  const int64_t rank = table.place().rank;
  std::size_t param = 0, of_rest = 0;
  for (const Slot slot : slots_in_order(layer)) {
    std::shared_ptr<PackedWeight> packed;
    if (table.linear_of(slot) != nullptr) {
      packed = std::make_shared<PackedWeight>();
    }
    for (const ParamSpec& spec : table.weights()[slot].params) {
      const at::Tensor values = unit.layout().view_of(whole, param++);
      if (packed) {
        const QuantisedMatrix matrix = QuantisedMatrix::of(values, format);
        packed->parts.push_back(spec.cut.is_cut() ? matrix.piece(spec.cut, rank) : matrix);
        continue;
      }
      const at::Tensor own = rest_->view(of_rest++);
      if (spec.cut.is_cut()) {
        own.copy_(piece_of(values, spec.cut, rank));
      } else {
        own.copy_(values);
      }
    }
    packed_[slot] = std::move(packed);
  }
}

std::vector<Weight> QuantisedLayer::weights() const {
  UnitShapes cut{context_.compute, {}};
  const std::vector<Slot> slots = slots_in_order(layer_);
  for (const Slot slot : slots) {
    if (!packed_[slot]) {
      cut.shapes.push_back(layer_.table().weights()[slot].shape);
    }
  }
  const std::vector<Weight> rest = rest_->gathered().materialize(cut);
  std::vector<Weight> weights(packed_.size());
  std::size_t of_rest = 0;
  for (const Slot slot : slots) {
    if (packed_[slot]) {
      weights[slot].packed = packed_[slot];
    } else {
      weights[slot] = rest[of_rest++];
    }
  }
  return weights;
}

void QuantisedLayer::append_values(Slot slot, at::ScalarType dtype, std::size_t& of_rest,
                                   std::vector<at::Tensor>& values) const {
  if (packed_[slot]) {
    for (const QuantisedMatrix& part : packed_[slot]->parts) {
      values.push_back(part.unpack(dtype).reshape({-1}));
    }
    return;
  }
  for (std::size_t i = 0; i < layer_.table().weights()[slot].params.size(); ++i) {
    values.push_back(rest_->view(of_rest++).to(dtype).reshape({-1}));
  }
}

std::vector<at::Tensor> QuantisedLayer::unpack(at::ScalarType dtype) const {
  std::vector<at::Tensor> units;
  std::size_t of_rest = 0;
  const std::vector<std::vector<ParamSpec>> specs = layer_.unit_specs();
  for (std::size_t unit = 0; unit < specs.size(); ++unit) {
    std::vector<at::Tensor> values;
    for (const Slot slot : layer_.unit_slots()[unit]) {
      append_values(slot, dtype, of_rest, values);
    }
    const UnitLayout layout(rest_->name(), specs[unit]);
    at::Tensor own = at::cat(values);
    if (layout.num_parts() > 1) {
      std::vector<int64_t> sizes;
      for (int64_t part = 0; part < layout.num_parts(); ++part) {
        sizes.push_back(layout.part_numel(part));
      }
      own = layout.whole_of(context_.tensor->ranks->all_gather_rows(own, sizes, "parameters"));
    }
    units.push_back(std::move(own));
  }
  return units;
}

}  // namespace ringside::engine
