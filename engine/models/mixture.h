// Channel mixer: router and experts.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"
#include "engine/nn/experts.h"

namespace ringside::engine {

// Its parts of a layer, in the order of the units. Parameters in PartPlace::kExperts are named
// behind "mlp.experts.<x>.".
std::vector<LayerPart> mixture_parts(const ModelConfig& config);

// Sum of each token's experts, weighted by the router. The experts are the router's choice or
// replayed ones. Differentiable.
// Shapes: normed_sE -> [s, E].
// Collective over, blocks, throws: as apply_experts().
at::Tensor mixture(const ModelConfig& config, const LayerWeights& weights,
                   const at::Tensor& normed_sE, const LayerContext& context);

}  // namespace ringside::engine
