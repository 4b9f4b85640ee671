// Memory of a rank while a model's parameters are made and filled, predicted from shapes.
#pragma once

#include <cstdint>

#include "engine/device/compute_context.h"
#include "engine/layers/model_config.h"
#include "engine/models/decoder_units.h"
#include "engine/runner/memory_shapes.h"

namespace ringside::engine {

// Bytes of the device.
struct LoadingMemory {
  int64_t peak = 0;  // the most while units are made
  int64_t kept = 0;  // once all are
};

// Of Decoder's constructor that fills the units one after another. Beside the units that are ready,
// a layer that is packed has its master values and what packing needs. Scratch memory of the host
// (values drawn at random, tensors of files that are unpacked) is left out.
// context: dtypes only. stage: of the model.
// Thread safety: pure.
LoadingMemory loading_memory(const ModelConfig& config, const Stage& stage,
                             const ComputeContext& context, const WeightStorage& storage,
                             const StateShape& state);
// The same for the whole model.
LoadingMemory loading_memory(const ModelConfig& config, const ComputeContext& context,
                             const WeightStorage& storage, const StateShape& state);

}  // namespace ringside::engine
