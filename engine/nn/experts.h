// Mixture of experts: router, dispatch of rows to experts, sum of their results.
//
// Shapes: s = tokens, E = hidden size, X = experts, K = experts a token, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/params/weight.h"
#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

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

// The experts of a layer and the ranks that hold them.
struct ExpertGroup {
  int64_t experts = 0;  // of all ranks
  // Rank p has even_part(experts, ranks, p); null: this rank has all of them.
  std::shared_ptr<sp::Communicator> ranks = nullptr;
  // Of a recomputed layer; null: none. Both runs use the row counts of the first.
  sp::KeptResults* kept = nullptr;
  // int64 [X] on the device; undefined: none. The rows of this rank's tokens for each expert are
  // added, once for a layer that runs twice.
  at::Tensor load_X = {};
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
// Shapes: x [s, E]; returns [s, E]. s may be 0.
// Collective over: the group's ranks, in the forward and in the backward.
// Blocks: on a device until the host knows how many rows each expert has.
at::Tensor apply_experts(const at::Tensor& x_sE, const Routes& routes, const ExpertGroup& group,
                         const ExpertFunction& function);

// down(silu(gate x) * up x) for each row. Shapes: rows [R, E], gate_up [X, 2I, E], down [X, E, I].
at::Tensor swiglu_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                          const Weight& gate_up_X2IE, const Weight& down_XEI);

}  // namespace ringside::engine
