// Executor of an attention plan on this rank's heads of its ring share: one loop for every method
// and device.
//
// Shapes: S = rows of this rank's ring share, h/k = this rank's query/KV heads, D = head dim.
// Collective over: the ring group.
// Blocks: until this rank's part is done; on CUDA only the current stream waits.
// Throws: c10::Error of the kernels; what the communicator throws.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"
#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/communicator.h"

namespace ringside::sp {

// Gradients of a share's queries, keys and values.
struct ShareGradients {
  at::Tensor dq_ShD;
  at::Tensor dkv_S2kD;
};

// Output and log-sum-exp over all keys that this share's queries attend to.
// Shapes: q_ShD, kv_S2kD (k heads, then v heads) on the prepared device in the wire dtype; returns
// out_ShD in the accumulation or the compute dtype, and lse_Sh in the accumulation dtype.
PartialAttention run_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                             const PreparedPlan& prepared, Communicator& ring,
                             double softmax_scale);

// Gradients of this share's queries, keys and values. side: out and lse are those of all keys
// together.
// Shapes: `side` in any dtype, but lse_Sh in the accumulation dtype; both gradients in the
// accumulation or the compute dtype.
ShareGradients run_backward(const QuerySide& side, const at::Tensor& kv_S2kD,
                            const PreparedPlan& prepared, Communicator& ring, double softmax_scale);

}  // namespace ringside::sp
