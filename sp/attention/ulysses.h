// Ulysses all-to-all: exchanges a run of tokens with all heads for the whole ring share with this
// rank's heads, and back. Head splits may be uneven. A KV head that several ranks need is written
// into each rank's slice, so no repeated KV tensor exists. With one rank nothing is copied.
//
// Shapes: s = this rank's tokens, S = the ring share's tokens, H/h = all/this rank's query heads,
// K/k the same for KV heads, D = head dim.
// Collective over: the Ulysses group.
// Blocks: until this rank's result is there; on CUDA only the current stream waits.
// Throws: c10::Error, before a tensor is sent, when its shape does not match the plan. With one
// rank nothing is checked; attention() checks all tensors first.
// Source: Jacobs et al. 2023, DeepSpeed-Ulysses.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/mesh/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// q_sHD -> q_ShD; adjoint of heads_to_sequence.
at::Tensor sequence_to_heads(const at::Tensor& q_sHD, const AttentionPlan& plan,
                             Communicator& ulysses);

// out_ShD -> out_sHD; adjoint of sequence_to_heads.
at::Tensor heads_to_sequence(const at::Tensor& out_ShD, const AttentionPlan& plan,
                             Communicator& ulysses);

// q, k and v of this rank's heads.
struct HeadShard {
  at::Tensor q_ShD;
  at::Tensor kv_S2kD;  // k heads, then v heads
};

// q_sHD, k_sKD, v_sKD -> this rank's heads of the whole share. k and v share one exchange; both
// exchanges run at the same time.
HeadShard qkv_to_heads(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                       const AttentionPlan& plan, Communicator& ulysses);

// The gradients of this rank's tokens.
struct SequenceGradients {
  at::Tensor dq_sHD;
  at::Tensor dk_sKD;
  at::Tensor dv_sKD;
};

// Adjoint of qkv_to_heads. Partial gradients of a shared KV head are summed in rank order. The
// results keep the dtypes of dq_ShD and dkv_S2kD, which may differ.
SequenceGradients gradients_to_sequence(const at::Tensor& dq_ShD, const at::Tensor& dkv_S2kD,
                                        const AttentionPlan& plan, Communicator& ulysses);

}  // namespace ringside::sp
