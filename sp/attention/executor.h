// Executor of an attention plan on this rank's heads of its ring share: one loop for every method
// and device.
//
// Shapes: S = rows of this rank's ring share, h/k = this rank's query/KV heads, D = head dim.
// Collective over: the ring group.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"
#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

struct ShareGradients {
  at::Tensor dq_ShD;
  at::Tensor dkv_S2kD;
};

// Shapes: q_ShD, kv_S2kD (k heads, then v heads) on the prepared device in the wire dtype; returns
// out_ShD in the accumulation or the compute dtype, and lse_Sh in the accumulation dtype.
PartialAttention run_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                             const PreparedPlan& prepared, Communicator& ring,
                             double softmax_scale);

// out and lse are those of all keys together.
// Shapes: `side` in any dtype, but lse_Sh in the accumulation dtype; both gradients in the
// accumulation or the compute dtype.
ShareGradients run_backward(const QuerySide& side, const at::Tensor& kv_S2kD,
                            const PreparedPlan& prepared, Communicator& ring, double softmax_scale);

}  // namespace ringside::sp
