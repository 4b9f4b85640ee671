// The Ulysses all-to-all (Jacobs et al. 2023, DeepSpeed-Ulysses): trades a run of tokens with all heads for the whole
// ring share with this rank's heads, and back. Each function is the adjoint of the one named beside it. Head splits may
// be uneven, and a KV head that several ranks need is written into each one's slice, so no repeated KV tensor exists.
// Shapes: s = this rank's tokens, S = the ring share's tokens, H/h = all/this rank's query heads, K/k the same for KV
// heads, D = head dim. Collective over the Ulysses group. With one rank nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/comm/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// q_sHD -> q_ShD; adjoint of heads_to_sequence.
at::Tensor sequence_to_heads(const at::Tensor& q_sHD, const AttentionPlan& plan, Communicator& ulysses);

// out_ShD -> out_sHD; adjoint of sequence_to_heads.
at::Tensor heads_to_sequence(const at::Tensor& out_ShD, const AttentionPlan& plan, Communicator& ulysses);

// k_sKD, v_sKD -> kv_S2kD: this rank's k heads, then its v heads, in one exchange.
at::Tensor kv_sequence_to_heads(const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                                const AttentionPlan& plan, Communicator& ulysses);

// The adjoint: dkv_S2kD -> {dk_sKD, dv_sKD}, the partial gradients of a shared KV head summed in rank order in the
// dtype of dkv_S2kD.
std::pair<at::Tensor, at::Tensor> kv_heads_to_sequence(const at::Tensor& dkv_S2kD,
                                                       const AttentionPlan& plan,
                                                       Communicator& ulysses);

}  // namespace ringside::sp
