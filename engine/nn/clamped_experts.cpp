#include "engine/nn/clamped_experts.h"

#include <ATen/ATen.h>

#include "engine/nn/grouped_linear.h"
#include "engine/nn/linear.h"
#include "engine/ops/gated_activation.h"

namespace ringside::engine {
namespace {

// Adapters are output-first already.
Weight output_first(const Weight& weight) {
  Weight turned(weight.value.transpose(1, 2), weight.leaf.transpose(1, 2));
  turned.low_rank = weight.low_rank;
  return turned;
}

// The expert of each row.
at::Tensor expert_of_rows(const std::vector<int64_t>& counts_X, c10::Device device) {
  return at::repeat_interleave(at::tensor(counts_X, at::kLong)).to(device);
}

}  // namespace

at::Tensor apply_clamped_experts(const at::Tensor& rows_RE, const std::vector<int64_t>& counts_X,
                                 const ClampedExperts& experts) {
  const at::Tensor expert_R = expert_of_rows(counts_X, rows_RE.device());
  const at::Tensor gate_up =
      apply_grouped_linear(rows_RE, output_first(experts.gate_up_XE2I), counts_X) +
      embed(experts.gate_up_bias_X2I, expert_R);
  return apply_grouped_linear(clamped_swiglu(gate_up, experts.gate_limit, experts.gate_alpha),
                              output_first(experts.down_XIE), counts_X) +
         embed(experts.down_bias_XE, expert_R);
}

}  // namespace ringside::engine
