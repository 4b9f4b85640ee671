#include "engine/runner/loading_memory.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "engine/params/quantised_matrix.h"
#include "engine/runner/layers_memory.h"

namespace ringside::engine {
namespace {

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// Elements of a unit that a rank stores: of the tensor-parallel ranks the first, which has the
// most.
int64_t stored_elements(const UnitSpecs& unit, const StateShape& state, int64_t experts) {
  const int64_t whole = elements(unit.specs);
  // What each tensor-parallel rank uses whole is sharded over these ranks, too.
  const int64_t of_whole = state.shard_ranks > 1 ? state.shard_ranks * state.tensor_ranks : 1;
  const bool is_cut = !unit.specs.empty() && unit.specs.front().cut.is_cut();
  switch (unit.role) {
    case UnitRole::kCorrections:
      return whole;
    case UnitRole::kExperts:
      return state.expert_ranks > 1 ? share(whole / experts * share(experts, state.expert_ranks),
                                            state.expert_shard_ranks)
                                    : share(whole, of_whole);
    default:
      return is_cut ? share(own_elements(unit.specs, state.tensor_ranks).cut, state.shard_ranks)
                    : share(whole, of_whole);
  }
}

// Beside what is kept of the layer while it is packed, whole. rest: what of it is not cut, or null.
int64_t packing_bytes(const UnitSpecs& layer, const UnitSpecs* rest, int64_t master) {
  int64_t largest = 0;
  for (const ParamSpec& spec : layer.specs) {
    largest = spec.shape.size() == 2 ? std::max(largest, spec.numel()) : largest;
  }
  return (elements(layer.specs) + (rest != nullptr ? elements(rest->specs) : 0)) * master +
         QuantisedMatrix::packing_bytes(largest);
}

}  // namespace

LoadingMemory loading_memory(const ModelConfig& config, const ComputeContext& context,
                             const WeightStorage& storage, const StateShape& state) {
  return loading_memory(config, whole_stage(config), context, storage, state);
}

LoadingMemory loading_memory(const ModelConfig& config, const Stage& stage,
                             const ComputeContext& context, const WeightStorage& storage,
                             const StateShape& state) {
  LoadingMemory memory;
  const std::vector<UnitSpecs> units = unit_specs(config, stage, {0, state.tensor_ranks});
  for (std::size_t u = 0; u < units.size(); ++u) {
    const UnitSpecs& unit = units[u];
    if (unit.specs.empty()) {
      continue;
    }
    int64_t beside = 0;
    const bool is_layer = unit.role == UnitRole::kLayer, is_rest = unit.role == UnitRole::kWhole;
    if (storage.projections && (is_layer || is_rest)) {
      const bool has_rest = u + 1 < units.size() && units[u + 1].role == UnitRole::kWhole;
      beside = is_rest ? 0
                       : packing_bytes(unit, has_rest ? &units[u + 1] : nullptr,
                                       bytes_of(context.master));
      memory.kept +=
          packed_layer_bytes(unit.specs, *storage.projections, bytes_of(context.compute));
    } else {
      const at::ScalarType dtype = storage.is_frozen(unit.role)
                                       ? widened_dtype(unit.specs.front(), context.compute)
                                       : context.master;
      const bool on_host = state.parameters_on_host || state.masters_on_host;
      memory.kept +=
          on_host ? 0 : stored_elements(unit, state, config.experts.count) * bytes_of(dtype);
    }
    memory.peak = std::max(memory.peak, memory.kept + beside);
  }
  return memory;
}

}  // namespace ringside::engine
