// The projections around head-sharded attention with their exchanges in flight while the next
// product is computed, forward and backward. Same results as at::linear with the functions of
// head_exchange.h; the same rules hold: differentiable once, exact adjoints, collective forward and
// backward, any lengths and head counts, c10::Error before anything is sent. Norms and rotations of
// q and k work on head-sharded tensors as well: apply them to the results. Shapes: s = this rank's
// tokens, S = all tokens in rank order, E = hidden size, H/h = all/this rank's query heads, K/k the
// same for KV heads, D = head dim. Weights [out, in], and biases as at::linear. The gradients of
// weights and biases are this rank's tokens' alone: sum them over the group (gradient_sync.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// hidden_sE, q_weight [H D, E], k_weight and v_weight [K D, E] -> q_ShD, k_SkD, v_SkD, heads as
// head_share says. One exchange each for q, k, v, started as soon as its projection is done;
// backward starts all three and computes the gradients of one projection while the next exchange is
// under way. seq_lengths: tokens of each rank; empty = asked of the others.
std::tuple<at::Tensor, at::Tensor, at::Tensor> async_ulysses_qkv_projection(
    const at::Tensor& hidden_sE, const at::Tensor& q_weight,
    const std::optional<at::Tensor>& q_bias, const at::Tensor& k_weight,
    const std::optional<at::Tensor>& k_bias, const at::Tensor& v_weight,
    const std::optional<at::Tensor>& v_bias, int64_t head_dim,
    const std::shared_ptr<Communicator>& comm, const std::vector<int64_t>& seq_lengths = {});

// out_ShD (heads cut by even_lengths), weight [E, H D] -> hidden_sE. What each rank sends is
// multiplied with its slice of the weight while the rest is in flight: the own piece first, then
// those of ranks me-1, me-2, ...; that order never depends on arrival, so the bits are the same on
// every run. Partial products are added in fp32 for narrower floats. Backward computes the weight's
// gradient while the exchange of out's is in flight. seq_lengths: tokens each rank gets; empty =
// even_lengths of S.
at::Tensor async_ulysses_output_projection(const at::Tensor& out_ShD, const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias,
                                           const std::shared_ptr<Communicator>& comm,
                                           const std::vector<int64_t>& seq_lengths = {});

}  // namespace ringside::sp
