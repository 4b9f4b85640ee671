// Attention of blocks in fp32 and bf16 on the CPU, over tiles of 64 keys x 64 queries that stay in
// the cache. Tiles without a visible pair are left out, so that a causal block costs half of a full
// one and a window what it shows. The bits of a result do not depend on the number of threads.
//
// Shapes: B = blocks, n = query rows, m = key rows, H = query heads, K = KV heads (H a multiple of
// K), D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "sp/attention/block_mask.h"
#include "sp/attention/lse_merge.h"

namespace ringside::sp {

// softmax(softmax_scale q k^T + mask) v of each block, and the log-sum-exp of its rows: 0 and -inf
// for a query that sees no key.
// Shapes: q_BnHD, k_BmKD, v_BmKD in fp32 and of fitting sizes, which the caller has checked;
// returns out_BnHD and lse_BnH. Thread safety: any thread. Uses ATen's threads, unless the caller
// is one of them. Source: FlashAttention-2 (Dao 2023).
PartialAttention tiled_attention(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                 const at::Tensor& v_BmKD, const VisibleKeys& visible,
                                 double softmax_scale);

// Gradients of a block's operands, in their dtype.
struct BlockGradients {
  at::Tensor dq_BnHD;
  at::Tensor dk_BmKD;
  at::Tensor dv_BmKD;
};

// Gradients of one block. out_BnHD and lse_BnH are merged over all blocks of these rows; dout_BnHD
// is the gradient of the merged output. The gradients of a KV head are computed by one thread.
// Shapes, threads: as tiled_attention().
BlockGradients tiled_attention_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                        const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                        const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                        const VisibleKeys& visible, double softmax_scale);

// The same of operands in bf16, where has_bf16_tiles(): products of bf16 are summed in fp32, and
// the softmax is in fp32. Its weights are rounded to bf16 before they are multiplied with the
// values. Shapes: as tiled_attention(), in bf16; returns fp32.
PartialAttention tiled_attention_bf16(const at::Tensor& q_BnHD, const at::Tensor& k_BmKD,
                                      const at::Tensor& v_BmKD, const VisibleKeys& visible,
                                      double softmax_scale);

// Gradients in fp32. A query head is computed by one thread; the parts of the query heads that
// share keys and values are summed in their order. Shapes: as tiled_attention_backward(), in bf16
// but lse_BnH.
BlockGradients tiled_attention_bf16_backward(const at::Tensor& dout_BnHD, const at::Tensor& q_BnHD,
                                             const at::Tensor& k_BmKD, const at::Tensor& v_BmKD,
                                             const at::Tensor& out_BnHD, const at::Tensor& lse_BnH,
                                             const VisibleKeys& visible, double softmax_scale);

}  // namespace ringside::sp
