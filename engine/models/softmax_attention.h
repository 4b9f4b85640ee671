// Token mixer: softmax attention with grouped query heads, RoPE and optional norms of the heads.
//
// Shapes: s = tokens, E = hidden size.
// Source: Ainslie et al. 2023 (grouped query heads); transformers 5.23 for the options of each
// model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// Its parts of a layer, in the order of the unit.
std::vector<LayerPart> softmax_attention_parts(const ModelConfig& config);

// Calls the context's attend() once, or its overlapped functions; their tensors may be strided
// views. Differentiable.
// Shapes: normed_sE -> [s, E].
// Collective over: the attention backend's group.
// Throws: c10::Error when overlapped attention meets weights with adapters or quantised ones.
at::Tensor softmax_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                             const at::Tensor& normed_sE, const LayerContext& context);

}  // namespace ringside::engine
