// Norm and rotation of query and key heads in one operator, forward and backward.
//
// Shapes: s = tokens, N = heads given, H = query heads, K = key heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/nn/norm_options.h"
#include "engine/nn/rope.h"
#include "engine/params/weight.h"

namespace ringside::engine {

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

}  // namespace ringside::engine
