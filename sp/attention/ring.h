// Runs the blocks of an attention plan while keys and values travel around the ring (Liu et al. 2023, Ring Attention),
// two buffers, the next transfer posted before the compute. A ring of one is the plain case: one step, no transfer.
// Shapes: S = rows of this rank's ring share, h/k = this rank's query/KV heads, D = head dim.
// Collective over the ring group.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"
#include "sp/comm/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

struct RingGradients {
  at::Tensor dq_ShD;
  at::Tensor dkv_S2kD;
};

// fp64 for doubles, else fp32: what partial outputs, LSE and gradients are kept in.
at::ScalarType accumulation_dtype(at::ScalarType wire_dtype);

// q_ShD, kv_S2kD (k heads, then v heads) in the wire dtype. Returns out_ShD and lse_Sh in the accumulation dtype.
PartialAttention ring_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                              const AttentionPlan& plan, Communicator& ring, double softmax_scale);

// dout_ShD, out_ShD in any dtype, lse_Sh in the accumulation dtype. Both gradients come in the accumulation dtype. The
// gradient of a share's KV starts at its first remote rank, follows the KV, and is completed by its owner: R-1 hops.
RingGradients ring_backward(const at::Tensor& dout_ShD, const at::Tensor& q_ShD,
                            const at::Tensor& kv_S2kD, const at::Tensor& out_ShD,
                            const at::Tensor& lse_Sh, const AttentionPlan& plan, Communicator& ring,
                            double softmax_scale);

}  // namespace ringside::sp
