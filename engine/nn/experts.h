// Experts: dispatch of rows to the experts that a router chose, sum of their results.
//
// Shapes: s = tokens, E = hidden size, X = experts, K = experts a token, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/router.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// Sum over each token's experts of weight times down(silu(gate x) * up x). Rows are sorted by
// expert and, within one, by token. A token's results are added in the order of its routes, in fp32
// or wider. Differentiable in x, routes' weights and experts' weights. The order of every sum is
// fixed: no pass adds by index.
// Shapes: x [s, E], gate_up [X, 2I, E], down [X, E, I]; returns [s, E]. s may be 0.
// Blocks: on a device until the host knows how many rows each expert has.
at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, const Weight& gate_up_X2IE,
                         const Weight& down_XEI);

}  // namespace ringside::engine
