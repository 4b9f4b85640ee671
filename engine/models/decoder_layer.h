// Decoder layer: parameters and forward. A token mixer (attention) and a channel mixer (gated MLP
// or experts), each behind a norm and added to the residual. Every mixer has a file of its own.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"
#include "engine/params/param_unit.h"
#include "engine/params/unit_scope.h"

namespace ringside::engine {

// Parameters of layer `layer` with their Hugging Face names, ordered so that q, k, v and gate, up
// are adjacent.
std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer);

// Parameters that a unit holds.
enum class LayerParts { kAll, kWithoutProjections };

// The matrices that a unit made from decoder_layer_specs(), or from those of `which`, is cut into.
UnitShapes layer_shapes(const ModelConfig& config, int64_t layer, at::ScalarType compute_dtype,
                        LayerParts which = LayerParts::kAll);
// Those matrices as the layer's weights.
LayerWeights layer_weights(const ModelConfig& config, int64_t layer,
                           const std::vector<Weight>& matrices,
                           LayerParts which = LayerParts::kAll);

// Both together. Differentiable towards unit.flat().
LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which = LayerParts::kAll);

// The hidden states after layer `layer`. The token mixer and the channel mixer are those of
// config.block(layer). Differentiable.
// Shapes: hidden_sE -> hidden_sE; s may be 0.
// Collective over: the attention backend's group.
at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const LayerContext& context);

}  // namespace ringside::engine
