// Decoder layer: parameters and forward. Pre-norm attention, and a gated MLP or a mixture of
// experts, each added to the residual.
//
// Shapes: s = tokens, E = hidden size, F = MLP size, H = query heads, K = key/value heads, D = head
// dim, X = experts, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/model_config.h"
#include "engine/nn/attention_backend.h"
#include "engine/nn/experts.h"
#include "engine/nn/rope.h"
#include "engine/params/param_unit.h"
#include "engine/params/unit_scope.h"

namespace ringside::engine {

// Parameters of layer `layer` with their Hugging Face names, ordered so that q, k, v and gate, up
// are adjacent.
std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer);

// Parameters of a layer's experts, which are a unit of their own: gate, up and down of each expert,
// one expert after the other. Empty for a layer without experts.
std::vector<ParamSpec> layer_experts_specs(const ModelConfig& config, int64_t layer);

// A layer's parameters for use in compute dtype, with q, k, v and gate, up fused. Absent ones are
// undefined.
struct LayerWeights {
  Weight qkv_weight;  // [(H + 2K) D, E]
  Weight qkv_bias;
  Weight o_weight;  // [E, H D]
  Weight o_bias;
  Weight q_norm;  // [D]
  Weight k_norm;
  Weight gate_up_weight;  // [2F, E]
  Weight gate_up_bias;
  Weight down_weight;  // [E, F]
  Weight down_bias;
  Weight router;           // [X, E], in place of the MLP's
  Weight experts_gate_up;  // [x, 2I, E] of the x experts of this rank
  Weight experts_down;     // [x, E, I]
  Weight input_norm;       // [E]
  Weight post_attention_norm;
};

// Parameters that a unit holds.
enum class LayerParts { kAll, kWithoutProjections };

// The matrices that a unit made from decoder_layer_specs(), or from those of `which`, is cut into.
UnitShapes layer_shapes(const ModelConfig& config, int64_t layer, at::ScalarType compute_dtype,
                        LayerParts which = LayerParts::kAll);
// The matrices that `count` experts are cut into.
UnitShapes experts_shapes(const ModelConfig& config, int64_t count, at::ScalarType compute_dtype);

// Those matrices as the layer's weights, without its experts.
LayerWeights layer_weights(const ModelConfig& config, int64_t layer,
                           const std::vector<Weight>& matrices,
                           LayerParts which = LayerParts::kAll);

// Sets the matrices of experts_shapes().
void set_experts(LayerWeights& weights, const std::vector<Weight>& matrices);

// layer_shapes() and layer_weights() together. Differentiable towards unit.flat().
LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which = LayerParts::kAll);

// How the MLP of a layer is computed.
struct MlpTiles {
  int64_t rows = 0;        // at a time; 0 = all at once
  bool value_read = true;  // false: a recomputation, of which only the gradient path is used
};

// The hidden states after layer `layer`. Calls attention.attend() once; its tensors may be strided
// views.
// Shapes: hidden_sE -> hidden_sE; s may be 0.
at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const RopeTables& rope,
                         AttentionBackend& attention, MlpTiles tiles = {},
                         const ExpertGroup& experts = {});

}  // namespace ringside::engine
