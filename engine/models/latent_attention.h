// Token mixer: latent attention (MLA). The keys and values of all heads follow from one small
// vector a token, the latent, and from one rotated key part that all heads share.
//
// Shapes: s = tokens, E = hidden size.
// Source: DeepSeek-AI 2024 (DeepSeek-V2); transformers 5.23, DeepseekV3Attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/models/layer_context.h"
#include "engine/models/layer_weights.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// Its parts of a layer, in the order of the unit.
std::vector<LayerPart> latent_attention_parts(const ModelConfig& config);

// Calls the context's attend() once. Its heads have config.head_dim components: values are padded
// with zeros. A backend that attends latents gets them instead, as one key/value head.
// Differentiable, except with such a backend.
// Shapes: normed_sE -> [s, E]; s may be 0.
// Collective over: the attention backend's group.
// Throws: c10::Error with overlapped attention.
at::Tensor latent_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                            const at::Tensor& normed_sE, const LayerContext& context);

}  // namespace ringside::engine
