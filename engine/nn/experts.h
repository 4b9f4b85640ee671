// Experts: dispatch of rows to the experts that a router chose, sum of their results.
//
// Shapes: s = tokens, E = hidden size, X = experts, K = experts a token, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/nn/expert_pass.h"
#include "engine/nn/router.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// The results of this rank's experts for rows in their order. counts: rows of each.
// Shapes: [R, E] to [R, E].
using ExpertFunction =
    std::function<at::Tensor(const at::Tensor& rows_RE, const std::vector<int64_t>& counts)>;

// Sum over each token's experts of weight times result. Rows are sorted by expert and, within one,
// by token; with several ranks by expert, rank and token. A token's results are added in the order
// of its routes, in fp32 or wider. Differentiable in x, routes' weights and what the function uses.
// The order of every sum is fixed: no pass adds by index. With several ranks the results are the
// same, but an expert's weights get the gradient of the tokens of all ranks in one sum.
// Shapes: x [s, E], experts = X of all ranks together; returns [s, E]. s may be 0.
// Collective over: the pass's ranks, in the forward and in the backward.
// Blocks: on a device until the host knows how many rows each expert has, unless it was told.
// Throws: c10::Error, before anything is sent, on routes of other shapes, and when there are more
// ranks than experts.
at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, int64_t experts,
                         const ExpertPass& pass, const ExpertFunction& function);

// down(silu(gate x) * up x) for each row, an ExpertFunction. Differentiable.
// Shapes: rows [R, E], gate_up [X, 2I, E], down [X, E, I]; returns [R, E].
// Throws: c10::Error as apply_grouped_linear().
at::Tensor swiglu_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                          const Weight& gate_up_X2IE, const Weight& down_XEI);

}  // namespace ringside::engine
