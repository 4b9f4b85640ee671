// Routers of experts: which experts each token uses, and with what weight.
//
// Shapes: s = tokens, X = experts, K = experts a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/nn/route_choice.h"

namespace ringside::engine {

// Which experts each token uses, and with what weight.
struct Routes {
  at::Tensor expert_sK;  // int64, distinct in a row
  at::Tensor weight_sK;  // in the compute dtype; differentiable towards the logits
};

// Every router scores the experts, selects K of them and weighs these by the scores. The selection
// alone may be replayed: weights always follow the current logits, so the router learns.

// Softmax over all experts, in fp32, or in fp64 for doubles unless in_fp32; then the K largest, or
// those that `choice` replays, which normalise divides by their sum. Source: Qwen3-MoE, as in
// transformers 5.23 (Qwen3MoeTopKRouter). Shapes: logits [s, X]. Throws: c10::Error unless
// 0 < K <= X.
Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32 = false, const LayerRoutes& choice = {});

}  // namespace ringside::engine
