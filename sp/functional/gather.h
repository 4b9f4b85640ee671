// Whole tensors from shards and shards from whole tensors, at the edges of a sequence-parallel
// region. Both are exact adjoints under the one rule of gradients: what the ranks' losses add up to
// is the loss, so parameter gradients are SUMmed over the group. Collective where said; blocks; not
// thread-safe; differentiable once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sp/functional/lengths.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// x [..s..] -> [..S..]: the shards of all ranks along gather_dim in rank order, on every rank.
// lengths: rows of each rank, 0 included; empty = asked of the others. Backward is the adjoint, a
// reduce-scatter: every rank's gradient of a row is summed at the row's owner, in rank order, in
// fp32 for narrower floats. So the ranks may compute different losses from the result, or one of
// them all of it; when each computes the same loss, let each count it 1/P. Collective forward and
// backward: every rank must use the result. Throws c10::Error, before anything is sent, when
// lengths do not fit.
at::Tensor gather_outputs(const at::Tensor& x, int64_t gather_dim,
                          const std::shared_ptr<Communicator>& comm,
                          const std::vector<int64_t>& lengths = {});

// For shards padded at the end of the sequence to the same size c on every rank, so that rank r
// holds the rows from r c on: the first unpadded_size rows of the whole, [..unpadded_size..].
// Padding is not sent and its gradient is zero. Throws c10::Error, before anything is sent, when
// unpadded_size is negative or exceeds P c.
at::Tensor gather_outputs_unpadded(const at::Tensor& x, int64_t gather_dim, int64_t unpadded_size,
                                   const std::shared_ptr<Communicator>& comm);

// x [..S..], the same on every rank -> this rank's part [..s..] of the floor/ceil cut
// (even_lengths) along dim, a view. Backward is the local adjoint: the slice's gradient in its
// place, zero elsewhere. So a rank's gradient of x is the part its own tokens contribute, and the
// SUM over ranks is the whole; nothing is sent. Not collective.
at::Tensor slice_input_tensor(const at::Tensor& x, int64_t dim, const Communicator& comm);

}  // namespace ringside::sp
