// Experts of GPT-OSS: projections with biases around clamped_swiglu(). Weights are stored together,
// each input-first, as on disk.
//
// Shapes: R = rows, E = hidden size, X = experts, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/params/weight.h"

namespace ringside::engine {

// The weights of all experts of a layer, not quantised; projections may have adapters.
struct ClampedExperts {
  Weight gate_up_XE2I;
  Weight gate_up_bias_X2I;
  Weight down_XIE;
  Weight down_bias_XE;
  double gate_limit = 0.0;  // as clamped_swiglu() takes them
  double gate_alpha = 0.0;
};

// The results of rows in the order of their expert. counts: rows of each. Differentiable.
// Shapes: [R, E] to [R, E].
// Throws: c10::Error as apply_grouped_linear().
// Source: gpt-oss, as in transformers 5.23 (GptOssExperts).
at::Tensor apply_clamped_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                                 const ClampedExperts& experts);

}  // namespace ringside::engine
