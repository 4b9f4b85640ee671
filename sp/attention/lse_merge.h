// Merging partial attention results of the same query rows over disjoint sets of keys, by their log-sum-exp
// (Milakov and Gimelshein 2018, online softmax; the form used by flash decoding).
// Shapes: ... = any rows and heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::sp {

struct PartialAttention {
  at::Tensor out;  // [..., D]
  at::Tensor lse;  // [...], natural log; -inf where no key was attended
};

// Both partials in the same accumulation dtype, fp32 or fp64 (others throw c10::Error: bf16 accumulators lose a bit per
// merge). Where both LSEs are -inf the result is a zero row with LSE -inf, never NaN.
PartialAttention merge_partials(const PartialAttention& a, const PartialAttention& b);

}  // namespace ringside::sp
