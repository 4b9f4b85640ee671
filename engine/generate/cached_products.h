// Products of attention in generation. Scores and sums of values are computed as the trainer's
// attention does, in fp32 (fp64 for doubles): a score of 20 rounded to bf16 is off by up to 0.06,
// and a policy that attends so is not the trainer's.
//
// Shapes: b = matrices, n = queries, m = keys, D = head dim, H = query heads.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// The dtype of sums over elements of x.
at::ScalarType sum_dtype(const at::Tensor& x);

// Scaled products of queries [b, n, D] with keys [b, D, m] in the dtype of sums: [b, n, m].
at::Tensor scaled_products(const at::Tensor& q_bnD, const at::Tensor& k_bDm, double scale);

// Values [b, m, D] weighted by probs [b, n, m]; returns [b, n, D] in the values' dtype. On CUDA the
// probs are rounded to that dtype, as FlashAttention does.
at::Tensor weighted_values(const at::Tensor& probs_bnm, const at::Tensor& v_bmD);

// Softmax over the last dim of scores [.., H, n]; sinks_H join the sums without a column.
at::Tensor softmax_with_sinks(const at::Tensor& scores_xHn, const at::Tensor& sinks_H);

}  // namespace ringside::engine
