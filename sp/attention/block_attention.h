// One batched kernel call of attention blocks, forward with log-sum-exp and backward given the
// final output and LSE: the form in which blocks can be merged, in a ring or otherwise. Shapes: B =
// blocks, n = query rows, m = key rows, H = query heads, K = KV heads (H a multiple of K), D = head
// dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"

namespace ringside::sp {

// What a block's queries see: with `causal` query i the keys 0..i, which needs n == m; with
// `additive_nm`, same dtype as q, key j's score plus additive[i][j], where every query must have a
// finite entry; else everything.
struct BlockMask {
  bool causal = false;
  at::Tensor additive_nm;
};

struct BlockGradients {
  at::Tensor dq_BnHD;
  at::Tensor dk_BmKD;
  at::Tensor dv_BmKD;
};

// q_BnHD, k_BmKD, v_BmKD in fp32 or fp64 (the CPU kernel returns its input's dtype, so lower
// precision is upcast by the caller). Returns out_BnHD and lse_BnH in the same dtype. Throws
// c10::Error when H is not a multiple of K, where the kernel would read out of bounds.
PartialAttention block_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const BlockMask& mask,
                                 double softmax_scale);

// out_BnHD and lse_BnH are those of all blocks of the rows merged; dout_BnHD is the gradient of the
// merged output.
BlockGradients block_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const BlockMask& mask, double softmax_scale);

}  // namespace ringside::sp
