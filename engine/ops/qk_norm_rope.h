// Norm and rotation of query and key heads in one operator, forward and backward.
//
// Shapes: s = tokens, N = heads given, H = query heads, K = key heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "engine/ops/norm_options.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// cos and sin of every token's angles, shared by all layers of one forward.
struct RopeTables {
  at::Tensor cos_s1d;  // [s, 1, D/2], compute dtype, times the frequencies' magnitude
  at::Tensor sin_s1d;
};

// The heads in heads_sND, in this order. All heads behind the keys are values.
struct HeadCounts {
  int64_t query = 0;
  int64_t key = 0;
};

// RMSNorm of each head over D before the rotation. Undefined weights: no norm.
struct HeadNorms {
  Weight query;  // [D]
  Weight key;
  NormOptions options = {};
};

struct RotatedHeads {
  at::Tensor q_sHD;
  at::Tensor k_sKD;
  at::Tensor v;  // [s, N - H - K, D]: a view of the heads given
};

// Splits the output of a fused projection. Query and key heads are normed and rotated by their
// token's angles; value heads stay as they are. The results are strided views. Differentiable in
// the heads and the norms' weights; the gradient of the heads is one buffer, so nothing is
// concatenated.
// Shapes: s may be 0, N may be H + K.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match.
RotatedHeads norm_and_rotate(const at::Tensor& heads_sND, HeadCounts counts, const HeadNorms& norms,
                             const RopeTables& tables);

namespace operators {

// In these acc is as in rms_norm.h.

// The first H + K of the heads, normed over D (where the norms are given) and rotated.
// Shapes: heads [s, N, D] with a dense last dim: H query heads, K key heads, others; norms [D];
// cos, sin [s, 1, D/2]; returns [s, H + K, D] and rstd [s, H + K, 1], or [0] without norms.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const at::Tensor& heads_sND, int64_t query_heads,
                                                int64_t key_heads,
                                                const std::optional<at::Tensor>& q_norm,
                                                const std::optional<at::Tensor>& k_norm,
                                                const at::Tensor& cos, const at::Tensor& sin,
                                                double eps, bool in_fp32, bool plus_one);

// Gradients of the heads and the norms. The heads behind H + K are values: dv is copied to them.
// Shapes: dq [s, H, D], dk [s, K, D], dv [s, N - H - K, D]; returns d_heads [s, N, D] and d_norms
// [2, D] (query, key) in the wider of acc and the norms' dtype, or [0] without norms.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_backward(
    const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& heads_sND,
    const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm,
    const at::Tensor& rstd, const at::Tensor& cos, const at::Tensor& sin, bool plus_one);

}  // namespace operators
}  // namespace ringside::engine
