// Loss of a sequence whose tokens are on several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

enum class LossForm { kMean, kSum };  // over this rank's valid tokens

// Mean over all valid tokens of the group: sum_i(loss_i n_i) / sum_i(n_i) for means, sum_i(loss_i)
// / sum_i(n_i) for sums. Computed in fp64. A rank with 0 tokens contributes nothing, even when its
// loss is NaN, and gets gradient 0. With 0 tokens on all ranks the result is 0. A mean over 0
// tokens may still turn that gradient 0 into NaN in its own backward; pass the sum there.
//
// Every rank calls backward on its copy of the result, which stands for one number. The gradient is
// n_i / sum(n), or 1 / sum(n), times this rank's incoming gradient. So the SUM of parameter
// gradients over the group is the gradient of that number once, not P times. Do not scale the
// result by P. Over dp x sp pass the group dp_sp.
//
// Shapes: loss has one float element, num_valid_tokens >= 0; the result has loss's shape and dtype
// and the same bits on every rank.
// Collective over: comm, forward only. Blocks.
// Throws: std::invalid_argument on a negative count; c10::Error when loss is not one float element.
// Thread safety: none.
at::Tensor reduce_sequence_parallel_loss(const at::Tensor& loss, int64_t num_valid_tokens,
                                         Communicator& comm, LossForm form = LossForm::kMean);

}  // namespace ringside::sp
