#include "engine/models/acting_values.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "engine/layers/decoder_layer.h"
#include "engine/models/quantised_layer.h"

namespace ringside::engine {
namespace {

// The quantised layer of a unit; null: its values are stored as they are.
const QuantisedLayer* quantised_layer(const Decoder& decoder, const ExportPlan& plan) {
  return plan.layer ? decoder.quantised(*plan.layer) : nullptr;
}

at::Tensor unpacked(const Decoder& decoder, const QuantisedLayer& layer, const ExportPlan& plan) {
  std::vector<UnitLayout> layouts;
  for (std::vector<ParamSpec>& specs : decoder.layer(*plan.layer).unit_specs()) {
    layouts.emplace_back(plan.layout.name(), std::move(specs));
  }
  return joined_values(plan.layout, layouts, layer.unpack(decoder.context().master));
}

}  // namespace

at::Tensor gather_values(const Decoder& decoder, const ExportPlan& plan) {
  const QuantisedLayer* const layer = quantised_layer(decoder, plan);
  if (layer == nullptr) {
    return gathered_values(plan);
  }
  return decoder.context().tensor == nullptr ? at::Tensor() : unpacked(decoder, *layer, plan);
}

at::Tensor acting_values(const Decoder& decoder, const ExportPlan& plan,
                         const at::Tensor& gathered) {
  const Adapters* const adapters = decoder.adapters();
  if (plan.experts_of && adapters != nullptr && adapters->adapts_experts(*plan.experts_of)) {
    const at::Tensor merged =
        gathered.to(decoder.context().master, /*non_blocking=*/false, /*copy=*/true);
    adapters->merge_into_experts(*plan.experts_of, plan.layout.specs(), merged);
    return merged;
  }
  if (has_plain_weights(decoder) || !plan.layer) {
    return gathered;
  }
  const at::Tensor merged =
      gathered.defined()
          ? gathered.to(decoder.context().master, /*non_blocking=*/false, /*copy=*/true)
          : unpacked(decoder, *quantised_layer(decoder, plan), plan);
  if (adapters != nullptr) {
    adapters->merge_into(*plan.layer, merged);
  }
  return merged;
}

at::Tensor effective_values(const Decoder& decoder, std::size_t unit) {
  const ExportPlan plan = decoder.parameters().export_plans().at(unit);
  return acting_values(decoder, plan, gather_values(decoder, plan));
}

}  // namespace ringside::engine
