// Attention of a varlen call by matrix products and a softmax, in fp32 or fp64: for devices whose
// flash kernel takes only narrow dtypes, to compare them with the CPU. Plain ATen, so it runs on
// any device. Exact as far as the dtype goes: TF32 must not be allowed. Slow: operator calls for
// each tile of each entry.
//
// Shapes: n/m = packed query/key rows of the call, h = query heads, K = KV heads (h a multiple of
// K), D = head dim.
// Throws: c10::Error on another dtype, and on shapes that do not fit each other or the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "sp/attention/cuda/varlen_group_ops.h"

namespace ringside::sp {

// Scores that exist at once, of all query heads together; the backward holds as many gradients of
// them beside. A tile has at least one query row, so a row with more scores is the exception.
inline constexpr int64_t kMaxExactScores = int64_t{1} << 24;

// As VarlenGroupOps::attend; a row without keys gets output 0 and LSE -inf.
// Shapes: returns out_nhD and lse_hn in q's dtype.
std::tuple<at::Tensor, at::Tensor> exact_attention(const at::Tensor& q_nhD, const at::Tensor& k_mKD,
                                                   const at::Tensor& v_mKD,
                                                   const VarlenGroupCall& call,
                                                   double softmax_scale,
                                                   int64_t max_scores = kMaxExactScores);

// As VarlenGroupOps::attend_backward.
// Shapes: returns dq_nhD, dk_mKD, dv_mKD in q's dtype.
std::tuple<at::Tensor, at::Tensor, at::Tensor> exact_attention_backward(
    const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_mKD,
    const at::Tensor& v_mKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
    const VarlenGroupCall& call, double softmax_scale, int64_t max_scores = kMaxExactScores);

}  // namespace ringside::sp
