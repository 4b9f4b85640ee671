// Trading tokens for heads and back, around the attention of any model (Jacobs et al. 2023,
// DeepSpeed-Ulysses): attention sees the whole sequence for this rank's heads, everything else sees
// this rank's tokens with all heads. Nothing need divide: sequence shards may have any lengths, 0
// included, and heads are cut floor/ceil (even_lengths), 0 of them where there are fewer heads than
// ranks. Shapes: s = this rank's tokens, S = all tokens in rank order, H/h = all/this rank's query
// heads, K/k the same for KV heads, D = head dim; "..." = any other dims, which stay where they
// are, as do the two named ones.
//
// All functions are differentiable once, with the exact adjoint; collective over comm forward and
// backward, so every rank must use their results in its loss, a rank without a token too; they
// block; not thread-safe. comm is kept until the graph is freed. Shapes, dtypes and lengths are
// checked before anything is sent: c10::Error. A group of one returns its input.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <vector>

#include "sp/functional/lengths.h"
#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// The heads of one rank under gather_seq_scatter_heads_qkv.
struct HeadShare {
  Range query_heads;
  Range kv_heads;  // those its query heads use; neighbours may share one
  std::vector<int64_t>
      kv_head_of;  // [h]: index into this rank's k heads, for each of its query heads
};

// Pure. Throws std::invalid_argument when query heads are not a positive multiple of KV heads.
HeadShare head_share(int64_t num_query_heads, int64_t num_kv_heads, int64_t ranks, int64_t rank);

// x [..s..H..] -> [..S..h..]. seq_dim and head_dim may count from the end. seq_lengths: tokens of
// each rank; empty = asked of the others. The adjoint of gather_heads_scatter_seq.
at::Tensor gather_seq_scatter_heads(const at::Tensor& x, int64_t seq_dim, int64_t head_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths = {});

// q [..s..H..], k and v [..s..K..] -> [..S..h..], [..S..k..], [..S..k..], in one exchange; heads as
// head_share says. A KV head that several ranks use is written into each one's slice, and its
// partial gradients are summed in rank order, in fp32 for narrower floats. The results are views of
// one buffer: clone one before writing into it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> gather_seq_scatter_heads_qkv(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t seq_dim,
    int64_t head_dim, const std::shared_ptr<Communicator>& comm,
    const std::vector<int64_t>& seq_lengths = {});

// x [..S..h..] -> [..s..H..]. seq_lengths: tokens each rank gets; empty = even_lengths of S. Where
// the shards were of other lengths, pass those. head_counts: heads each rank holds; empty = asked
// of the others.
at::Tensor gather_heads_scatter_seq(const at::Tensor& x, int64_t head_dim, int64_t seq_dim,
                                    const std::shared_ptr<Communicator>& comm,
                                    const std::vector<int64_t>& seq_lengths = {},
                                    const std::vector<int64_t>& head_counts = {});

}  // namespace ringside::sp
