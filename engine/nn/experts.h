// Mixture of experts: router, dispatch of rows to experts, sum of their results.
//
// Shapes: s = tokens, E = hidden size, X = experts, K = experts a token, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/params/weight.h"

namespace ringside::engine {

// Which experts each token uses, and with what weight.
struct Routes {
  at::Tensor expert_sK;  // int64, distinct in a row
  at::Tensor weight_sK;  // in the compute dtype; differentiable towards the logits
};

// Softmax over all experts, in fp32, or in fp64 for doubles unless in_fp32; then the K largest,
// which normalise divides by their sum. Source: Qwen3-MoE, as in transformers 5.23
// (Qwen3MoeTopKRouter). Shapes: logits [s, X]. Throws: c10::Error unless 0 < K <= X.
Routes route_by_softmax(const at::Tensor& logits_sX, int64_t per_token, bool normalise,
                        bool in_fp32 = false);

// Sum over each token's experts of weight times down(silu(gate x) * up x). Rows are sorted by
// expert and, within one, by token. A token's results are added in the order of its routes, in fp32
// or wider. Differentiable in x, routes' weights and experts' weights. The order of every sum is
// fixed: no pass adds by index.
// Shapes: x [s, E], gate_up [X, 2I, E], down [X, E, I]; returns [s, E]. s may be 0.
// Blocks: on a device until the host knows how many rows each expert has.
at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, const Weight& gate_up_X2IE,
                         const Weight& down_XEI);

}  // namespace ringside::engine
