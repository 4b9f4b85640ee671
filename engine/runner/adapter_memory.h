// Memory of adapters and of the base that they are trained beside, predicted from shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layers/model_config.h"
#include "engine/params/param_unit.h"
#include "engine/runner/memory_shapes.h"

namespace ringside::engine {

// Elements of all the parameters.
int64_t elements(const std::vector<ParamSpec>& specs);

// The largest part when `whole` is divided over ranks.
int64_t share(int64_t whole, int64_t ranks);

// A layer whose projections are packed; its other parameters take `compute` bytes an element.
int64_t packed_layer_bytes(const std::vector<ParamSpec>& specs, QuantisedFormat format,
                           int64_t compute);

// Bytes.
struct AdapterMemory {
  int64_t masters = 0;         // values of all adapters, which every rank has whole
  int64_t saved_by_layer = 0;  // what those of a layer add: x A^T of each, and the factors' casts
  // The layers' parameters but their experts', the projections as they are stored. Empty: the base
  // is not packed.
  std::optional<int64_t> packed_layers = {};
};

// tokens: of this rank. compute, master: bytes of a number.
// Throws: c10::Error on adapters that the model cannot have.
AdapterMemory adapter_memory(const ModelConfig& config, const AdapterShape& shape, int64_t tokens,
                             int64_t compute, int64_t master);

}  // namespace ringside::engine
