// The loss of a sequence whose tokens lie on several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

enum class LossForm { kMean, kSum };  // over this rank's valid tokens

// The mean over all valid tokens of the group: sum_i(loss_i n_i) / sum_i(n_i) for means,
// sum_i(loss_i) / sum_i(n_i) for sums. loss: one float element; num_valid_tokens >= 0. The result
// has loss's shape and dtype and the same bits on every rank; it is computed in fp64. A rank with 0
// tokens counts nothing, whatever its loss says, NaN included, and gets gradient 0; with 0 tokens
// everywhere the result is 0. A mean over 0 tokens may still make a NaN of that 0 inside its own
// backward: there pass the sum.
//
// Every rank calls backward on its copy of the result, which stands for one number: the gradient is
// n_i / sum(n), or 1 / sum(n), times this rank's incoming one, so the SUM of parameter gradients
// over the group is the gradient of that number once, not P times. Do not scale the result by P.
// Over dp x sp pass the group dp_sp.
//
// Collective (forward only), blocks, not thread-safe. Throws std::invalid_argument on a negative
// count, c10::Error when loss is not one float element.
at::Tensor reduce_sequence_parallel_loss(const at::Tensor& loss, int64_t num_valid_tokens,
                                         Communicator& comm, LossForm form = LossForm::kMean);

}  // namespace ringside::sp
