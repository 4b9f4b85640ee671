// Batched attention of blocks in one kernel call: forward with log-sum-exp, and backward given the
// final output and LSE. Results in this form can be merged, in a ring or otherwise.
//
// Shapes: B = blocks, n = query rows, m = key rows, H = query heads, K = KV heads (H a multiple of
// K), D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/lse_merge.h"

namespace ringside::sp {

// Mask of a block. `causal`: query i attends to keys 0..i; requires n == m. `additive_nm`, of q's
// dtype: additive[i][j] is added to the score of key j; every query must have a finite entry.
// Neither: every query attends to every key.
struct BlockMask {
  bool causal = false;
  at::Tensor additive_nm;
};

// Gradients of a block's operands, in their dtype.
struct BlockGradients {
  at::Tensor dq_BnHD;
  at::Tensor dk_BmKD;
  at::Tensor dv_BmKD;
};

// softmax(softmax_scale q k^T + mask) v of each block, and the log-sum-exp of its rows.
// Shapes: q_BnHD, k_BmKD, v_BmKD in fp32 or fp64; returns out_BnHD and lse_BnH in the same dtype.
// (The CPU kernel returns its input's dtype, so the caller upcasts lower precision.)
// Throws: c10::Error on another dtype, on shapes that do not fit, on a causal block that is not
// square, and when H is not a multiple of K, where the kernel would read out of bounds.
// Source: ATen's CPU flash attention.
PartialAttention block_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const BlockMask& mask,
                                 double softmax_scale);

// Gradients of one block. out_BnHD and lse_BnH are merged over all blocks of these rows; dout_BnHD
// is the gradient of the merged output.
// Shapes, throws: as block_attention().
BlockGradients block_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const BlockMask& mask, double softmax_scale);

}  // namespace ringside::sp
