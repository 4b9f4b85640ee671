// Batched attention of blocks in one kernel call: forward with log-sum-exp, and backward given the
// final output and LSE. Results in this form can be merged, in a ring or otherwise.
//
// Shapes: B = blocks, n = query rows, m = key rows, H = query heads, K = KV heads (H a multiple of
// K), D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/block_mask.h"
#include "sp/attention/lse_merge.h"
#include "sp/attention/tiled_attention.h"

namespace ringside::sp {

// softmax(softmax_scale q k^T + mask) v of each block, and the log-sum-exp of its rows.
// Shapes: q_BnHD, k_BmKD, v_BmKD in fp32 or fp64; returns out_BnHD and lse_BnH in the same dtype.
// In bf16, where has_bf16_tiles(), returns fp32; the caller upcasts other lower precision. In fp64
// every query must see a key.
// Throws: c10::Error on another dtype, on shapes that do not fit, when H is not a multiple of K,
// where the kernel would read out of bounds, and in fp64 without the additive mask that
// block_mask() makes. Source: tiled_attention(), in fp64 ATen's CPU flash attention.
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
