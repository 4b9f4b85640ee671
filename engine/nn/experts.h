// Experts: dispatch of rows to the experts that a router chose, sum of their results.
//
// Shapes: s = tokens, E = hidden size, X = experts, K = experts a token, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/nn/expert_exchange.h"
#include "engine/nn/router.h"
#include "engine/params/weight.h"
#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// Where the experts of a layer are, and what passes over them leave behind.
struct ExpertGroup {
  // Rank p has even_part(X, ranks, p) of the experts; null: this rank has all of them.
  std::shared_ptr<sp::Communicator> ranks = nullptr;
  // Of a recomputed layer; null: none. Both runs use the routes and the row counts of the first.
  std::shared_ptr<sp::KeptResults> kept = nullptr;
  // [X]; null: none. The rows of this rank's tokens for each expert are added, once for a layer
  // that runs twice. Outlives the backward.
  std::vector<double>* load_X = nullptr;
  // Of the routes, if they are known before the forward: then the ranks exchange no counts and the
  // host does not wait for them. Outlives the backward. Null: counted from the routes.
  const RowCounts* counts = nullptr;
};

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
// Collective over: the group's ranks, in the forward and in the backward.
// Blocks: on a device until the host knows how many rows each expert has, unless it was told.
// Throws: c10::Error, before anything is sent, on routes of other shapes, and when there are more
// ranks than experts.
at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, int64_t experts,
                         const ExpertGroup& group, const ExpertFunction& function);

// down(silu(gate x) * up x) for each row, an ExpertFunction. Differentiable.
// Shapes: rows [R, E], gate_up [X, 2I, E], down [X, E, I]; returns [R, E].
// Throws: c10::Error as apply_grouped_linear().
at::Tensor swiglu_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                          const Weight& gate_up_X2IE, const Weight& down_XEI);

}  // namespace ringside::engine
