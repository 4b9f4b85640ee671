#include "engine/runner/loading_memory.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "engine/params/quantised_matrix.h"
#include "engine/runner/layers_memory.h"

namespace ringside::engine {
namespace {

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Elements of a unit that a rank stores.
int64_t stored_elements(const UnitSpecs& unit, const StateShape& state, int64_t experts) {
  const int64_t whole = elements(unit.specs);
  switch (unit.role) {
    case UnitRole::kCorrections:
      return whole;
    case UnitRole::kExperts:
      return share(whole / experts * share(experts, state.expert_ranks), state.expert_shard_ranks);
    default:
      return share(whole, state.shard_ranks);
  }
}

// Beside what is kept of the layer while it is packed.
int64_t packing_bytes(const UnitSpecs& layer, int64_t master) {
  int64_t largest = 0;
  for (const ParamSpec& spec : layer.specs) {
    largest = spec.shape.size() == 2 ? std::max(largest, spec.numel()) : largest;
  }
  return elements(layer.specs) * master + QuantisedMatrix::packing_bytes(largest);
}

}  // namespace

LoadingMemory loading_memory(const ModelConfig& config, const ComputeContext& context,
                             const WeightStorage& storage, const StateShape& state) {
  LoadingMemory memory;
  for (const UnitSpecs& unit : unit_specs(config)) {
    if (unit.specs.empty()) {
      continue;
    }
    int64_t beside = 0;
    if (storage.projections && unit.role == UnitRole::kLayer) {
      beside = packing_bytes(unit, bytes_of(context.master));
      memory.kept +=
          packed_layer_bytes(unit.specs, *storage.projections, bytes_of(context.compute));
    } else {
      const at::ScalarType dtype =
          storage.is_frozen() ? widened_dtype(unit.specs.front(), context.compute) : context.master;
      const bool on_host = state.parameters_on_host || state.masters_on_host;
      memory.kept +=
          on_host ? 0 : stored_elements(unit, state, config.experts.count) * bytes_of(dtype);
    }
    memory.peak = std::max(memory.peak, memory.kept + beside);
  }
  return memory;
}

}  // namespace ringside::engine
