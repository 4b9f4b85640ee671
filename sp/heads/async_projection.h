// Projections around head-sharded attention that overlap their exchanges with the next matrix
// product, forward and backward. Results equal at::linear with the functions of head_functions.h,
// and the same rules hold: differentiable once, exact adjoints, any lengths and head counts. Apply
// norms and rotations of q and k to the results; they work on head-sharded tensors. The gradients
// of weights and biases are this rank's part: sum them over the group
// (sp/functional/gradient_sync.h). They are summed and returned in the dtype of their leaf.
//
// Shapes: s = this rank's tokens, S = all tokens in rank order, E = hidden size, H/h = all/this
// rank's query heads, K/k the same for KV heads, D = head dim. Weights [out, in], biases as in
// at::linear.
// Collective over: comm, forward and backward. Every rank must use the results in its loss. Blocks.
// Throws: c10::Error on shapes or lengths that do not match; std::invalid_argument when query heads
// are not a positive multiple of KV heads. Nothing but missing lengths is exchanged before.
// Thread safety: none.
// Source: Jacobs et al. 2023, DeepSpeed-Ulysses.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/kept_results.h"

namespace ringside::sp {

// A weight or bias as a projection uses it: it computes with `value`, and the gradient goes to
// `leaf`, which may be wider. A tensor alone is both.
struct ProjectionParameter {
  at::Tensor value;
  at::Tensor leaf;

  // A parameter whose values are used as they are stored.
  ProjectionParameter(at::Tensor tensor)  // NOLINT(google-explicit-constructor)
      : value(tensor), leaf(std::move(tensor)) {}
  // The value to compute with, and the leaf that receives the gradient in its own dtype.
  ProjectionParameter(at::Tensor compute_value, at::Tensor master_leaf)
      : value(std::move(compute_value)), leaf(std::move(master_leaf)) {}
};

// One exchange each for q, k and v, started as soon as its projection is done. The backward starts
// all three and computes the gradients of one projection while the next exchange is in flight.
// seq_lengths: tokens of each rank; empty = gathered from the ranks.
// kept: for a call that runs again in the backward: the exchanged heads are kept, so that the
// second call sends nothing when seq_lengths are given.
// Shapes: hidden_sE, q_weight [H D, E], k_weight and v_weight [K D, E] -> q_ShD, k_SkD, v_SkD,
// heads by split_heads.
std::tuple<at::Tensor, at::Tensor, at::Tensor> async_ulysses_qkv_projection(
    const at::Tensor& hidden_sE, const ProjectionParameter& q_weight,
    const std::optional<ProjectionParameter>& q_bias, const ProjectionParameter& k_weight,
    const std::optional<ProjectionParameter>& k_bias, const ProjectionParameter& v_weight,
    const std::optional<ProjectionParameter>& v_bias, int64_t head_dim,
    const std::shared_ptr<Communicator>& comm, const std::vector<int64_t>& seq_lengths = {},
    KeptResults* kept = nullptr);

// Each received piece is multiplied with its slice of the weight while the rest is in flight: the
// own piece first, then those of ranks me-1, me-2, ... The order does not depend on arrival, so the
// bits are the same on every run. Partial products are added in fp32 for narrower floats. The
// backward computes the weight's gradient while the exchange of out's gradient is in flight.
// seq_lengths: tokens that each rank gets; empty = even_lengths of S.
// kept: as above; the received pieces are kept.
// Shapes: out_ShD (heads cut by even_lengths), weight [E, H D] -> hidden_sE.
at::Tensor async_ulysses_output_projection(const at::Tensor& out_ShD,
                                           const ProjectionParameter& weight,
                                           const std::optional<ProjectionParameter>& bias,
                                           const std::shared_ptr<Communicator>& comm,
                                           const std::vector<int64_t>& seq_lengths = {},
                                           KeptResults* kept = nullptr);

}  // namespace ringside::sp
