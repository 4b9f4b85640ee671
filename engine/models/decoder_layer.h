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

// Parameters of layer `layer` but its experts, with their Hugging Face names, ordered so that q, k,
// v and gate, up are adjacent.
std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer);
// Parameters of its experts, for each unit that holds some: one unit with one expert after another,
// or one for each stack of all experts. Empty for a layer without experts.
std::vector<std::vector<ParamSpec>> layer_experts_specs(const ModelConfig& config, int64_t layer);

// Parameters that a unit holds: all but experts, the same without projections, experts.
enum class LayerParts { kDense, kWithoutProjections, kExperts };

// The matrices that a unit made from decoder_layer_specs(), or from those of `which`, is cut into.
UnitShapes layer_shapes(const ModelConfig& config, int64_t layer, at::ScalarType compute_dtype,
                        LayerParts which = LayerParts::kDense);
// The matrices that these units, or parts of them, with `count` experts of the layer are cut into.
std::vector<UnitShapes> experts_shapes(const ModelConfig& config, int64_t layer, int64_t count,
                                       at::ScalarType compute_dtype);
// Makes such matrices the layer's weights, and leaves the others as they are; those of all units of
// experts at once.
// Throws: c10::Error on another number of matrices.
void set_layer_weights(LayerWeights& weights, const ModelConfig& config, int64_t layer,
                       const std::vector<Weight>& matrices, LayerParts which = LayerParts::kDense);

// The weights of one unit. Differentiable towards unit.flat().
// Collective over, throws: as ParamUnit::materialize().
LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which = LayerParts::kDense);

// The hidden states after layer `layer`. The token mixer and the channel mixer are those of
// config.block(layer). Differentiable.
// Shapes: hidden_sE -> hidden_sE; s may be 0.
// Collective over: the attention backend's group, the ranks of the experts.
// Throws: c10::Error on shapes or dtypes that do not fit, as its operators.
at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const LayerContext& context);

}  // namespace ringside::engine
