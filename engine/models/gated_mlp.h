// Channel mixer: gated MLP (SwiGLU, or with another activation of the gate).
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// Its parts of a layer, in the order of the unit.
std::vector<LayerPart> gated_mlp_parts(const ModelConfig& config);

// down(activation(gate x) * up x), in tiles of rows if asked. Differentiable. Not collective.
// Shapes: normed_sE -> [s, E].
// Throws: c10::Error on shapes or dtypes that do not fit, as apply_linear().
at::Tensor gated_mlp(const ModelConfig& config, const LayerWeights& weights,
                     const at::Tensor& normed_sE, MlpTiles tiles);

}  // namespace ringside::engine
