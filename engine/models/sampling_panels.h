// Packed copies of the weights that sampling multiplies with, for every token again.
#pragma once

#include <cstdint>

#include "engine/device/compute_context.h"
#include "engine/layers/model_config.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// Packs a weight of a linear layer beside its value, where context.products says so and the
// processor has kernels for it; otherwise, and for a quantised weight, does nothing.
void pack_for_sampling(Weight& weight, const ComputeContext& context);

// Bytes of the packed copies of a whole model with weights in the compute dtype: those of its
// linear layers and its head.
// Thread safety: pure.
int64_t sampling_panel_bytes(const ModelConfig& config, const ComputeContext& context);

}  // namespace ringside::engine
