// Gather and slice of tensors at the edges of a sequence-parallel region. Both are exact adjoints
// under the rule of gradients: the loss is the sum of the ranks' losses, so parameter gradients are
// SUMmed over the group. Differentiable once.
//
// Collective over: comm, where said.
// Blocks: the collective functions.
// Thread safety: none.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sp/mesh/communicator.h"
#include "sp/mesh/lengths.h"

namespace ringside::sp {

// Concatenates the shards of all ranks along gather_dim in rank order, on every rank. lengths: rows
// of each rank, 0 included; empty = gathered from the ranks. The backward is a reduce-scatter: all
// ranks' gradients of a row are summed at its owner, in rank order, in fp32 for narrower floats. So
// ranks may compute different parts of the loss from the result. When every rank computes the same
// loss, each must count it 1/P.
// Shapes: x [..s..] -> [..S..].
// Collective over: comm, forward and backward; every rank must use the result.
// Throws: c10::Error, before anything is sent, when lengths do not match.
at::Tensor gather_outputs(const at::Tensor& x, int64_t gather_dim,
                          const std::shared_ptr<Communicator>& comm,
                          const std::vector<int64_t>& lengths = {});

// gather_outputs() for shards padded at the end of the sequence to the same size c on every rank:
// rank r holds the rows from r c on. Returns the first unpadded_size rows of the whole. Padding is
// not sent and its gradient is zero.
// Shapes: x [..c..] -> [..unpadded_size..].
// Collective over: comm, forward and backward; every rank must use the result.
// Throws: c10::Error, before anything is sent, when unpadded_size is negative or exceeds P c.
at::Tensor gather_outputs_unpadded(const at::Tensor& x, int64_t gather_dim, int64_t unpadded_size,
                                   const std::shared_ptr<Communicator>& comm);

// This rank's part, by even_lengths, of a tensor that is the same on every rank; a view. The
// backward puts the slice's gradient in its place, with zeros elsewhere. So a rank's gradient of x
// is the part of its own tokens, and the SUM over ranks is the whole.
// Shapes: x [..S..] -> [..s..] along dim.
// Collective over: nothing; nothing is sent.
at::Tensor slice_input_tensor(const at::Tensor& x, int64_t dim, const Communicator& comm);

}  // namespace ringside::sp
