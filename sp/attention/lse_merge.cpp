#include "sp/attention/lse_merge.h"

#include <ATen/ATen.h>

#include <limits>

namespace ringside::sp {

PartialAttention merge_partials(const PartialAttention& a, const PartialAttention& b) {
  TORCH_CHECK(a.out.scalar_type() == b.out.scalar_type() &&
                  (a.out.scalar_type() == at::kFloat || a.out.scalar_type() == at::kDouble),
              "partial attention is merged in fp32 or fp64, got ", a.out.scalar_type(), " and ",
              b.out.scalar_type());
  const at::Tensor highest = at::maximum(a.lse, b.lse);
  // A finite stand-in keeps -inf - -inf from becoming NaN; exp(-inf - 0) is then the zero weight that is meant.
  const at::Tensor shift = highest.masked_fill(highest == -std::numeric_limits<double>::infinity(), 0.0);
  const at::Tensor weight_a = (a.lse - shift).exp_();
  const at::Tensor weight_b = (b.lse - shift).exp_();
  const at::Tensor sum = weight_a + weight_b;
  const at::Tensor divisor = sum.masked_fill(sum == 0, 1.0);
  return {a.out * (weight_a / divisor).unsqueeze(-1) + b.out * (weight_b / divisor).unsqueeze(-1),
          sum.log() + shift};
}

}  // namespace ringside::sp
