// Decoder layer: parameters and forward. Pre-norm attention and a gated MLP, each added to the
// residual.
//
// Shapes: s = tokens, E = hidden size, F = MLP size, H = query heads, K = key/value heads, D = head
// dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/model_config.h"
#include "engine/nn/attention_backend.h"
#include "engine/nn/rope.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Parameters of layer `layer` with their Hugging Face names, ordered so that q, k, v and gate, up
// are adjacent.
std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer);

// A layer's parameters in compute dtype, with q, k, v and gate, up fused. Absent ones are undefined
// tensors.
struct LayerWeights {
  at::Tensor qkv_weight;  // [(H + 2K) D, E]
  at::Tensor qkv_bias;
  at::Tensor o_weight;  // [E, H D]
  at::Tensor o_bias;
  at::Tensor q_norm;  // [D]
  at::Tensor k_norm;
  at::Tensor gate_up_weight;  // [2F, E]
  at::Tensor gate_up_bias;
  at::Tensor down_weight;  // [E, F]
  at::Tensor down_bias;
  at::Tensor input_norm;  // [E]
  at::Tensor post_attention_norm;
};

// Splits a unit made from decoder_layer_specs(). Differentiable towards unit.flat().
LayerWeights materialize_layer(const ModelConfig& config, const ParamUnit& unit,
                               at::ScalarType compute_dtype);

// The hidden states after layer `layer`. Calls attention.attend() once; its tensors may be strided
// views.
// Shapes: hidden_sE -> hidden_sE; s may be 0.
at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const RopeTables& rope,
                         AttentionBackend& attention);

}  // namespace ringside::engine
