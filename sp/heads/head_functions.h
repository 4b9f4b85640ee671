// Differentiable exchange of tokens for heads and back, around the attention of any model.
// Attention gets the whole sequence with this rank's heads; all other layers get this rank's tokens
// with all heads. No size must divide another: shards may have any lengths, 0 included. Heads are
// cut by even_lengths, 0 on some ranks when there are fewer heads than ranks. A group of one
// returns its input. Differentiable once, with the exact adjoint. comm is kept until the graph is
// freed.
//
// Shapes: s = this rank's tokens, S = all tokens in rank order, H/h = all/this rank's query heads,
// K/k the same for KV heads, D = head dim; "..." = any other dims. All dims keep their order.
// Collective over: comm, forward and backward. Every rank must use the results in its loss, also a
// rank without a token. Blocks.
// Throws: c10::Error on shapes, dtypes or lengths that do not match. Nothing but missing lengths is
// exchanged before.
// Thread safety: none.
// Source: Jacobs et al. 2023, DeepSpeed-Ulysses.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/lengths.h"

namespace ringside::sp {

// Adjoint of gather_heads_scatter_seq. seq_dim and head_dim may be negative. seq_lengths: tokens of
// each rank; empty = gathered from the ranks.
// Shapes: x [..s..H..] -> [..S..h..].
at::Tensor gather_seq_scatter_heads(const at::Tensor& x, int64_t seq_dim, int64_t head_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths = {});

// Exchanges q, k and v at once; heads by split_heads (head_split.h). A KV head that several ranks
// use is written into each rank's slice. Its partial gradients are summed in rank order, in fp32
// for narrower floats. The results are views of one buffer: clone one before writing into it.
// Shapes: q [..s..H..], k and v [..s..K..] -> [..S..h..], [..S..k..], [..S..k..].
// Throws: also std::invalid_argument, as split_heads().
std::tuple<at::Tensor, at::Tensor, at::Tensor> gather_seq_scatter_heads_qkv(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t seq_dim,
    int64_t head_dim, const std::shared_ptr<Communicator>& comm,
    const std::vector<int64_t>& seq_lengths = {});

// Adjoint of gather_seq_scatter_heads. seq_lengths: tokens that each rank gets; empty =
// even_lengths of S. Pass the shards' lengths when they were others. head_counts: heads of each
// rank; empty = gathered from the ranks.
// Shapes: x [..S..h..] -> [..s..H..].
at::Tensor gather_heads_scatter_seq(const at::Tensor& x, int64_t head_dim, int64_t seq_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths = {},
                                    const std::vector<int64_t>& head_counts = {});

}  // namespace ringside::sp
