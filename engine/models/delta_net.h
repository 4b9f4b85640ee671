// Token mixer: gated delta net, a linear attention with a state for each value head and a causal
// convolution before it.
//
// Shapes: s = tokens, E = hidden size.
// Source: Yang et al. 2024, Gated Delta Networks; transformers for the projections of each model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// Its parts of a layer, in the order of the unit.
std::vector<LayerPart> delta_net_parts(const ModelConfig& config);

// out(norm(mixed) * silu(gate)), where mixed comes from mix() of the attention backend's recurrent
// part, which it calls once. Differentiable.
// Shapes: normed_sE -> [s, E].
// Collective over: the backend's group.
// Throws: c10::Error when the backend has no recurrent part.
at::Tensor delta_net(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                     const at::Tensor& normed_sE, const LayerContext& context);

}  // namespace ringside::engine
