#include "engine/generate/cached_products.h"

#include <ATen/ATen.h>

#include <vector>

namespace ringside::engine {

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor scaled_products(const at::Tensor& q_bnD, const at::Tensor& k_bDm, double scale) {
  const at::ScalarType sums = sum_dtype(q_bnD);
  if (q_bnD.is_cuda() && q_bnD.scalar_type() != sums) {  // CUDA has this product without a copy
    return at::bmm(q_bnD, k_bDm, sums).mul_(scale);
  }
  return at::bmm(q_bnD.to(sums) * scale, k_bDm.to(sums));
}

at::Tensor weighted_values(const at::Tensor& probs_bnm, const at::Tensor& v_bmD) {
  const at::ScalarType factors = v_bmD.is_cuda() ? v_bmD.scalar_type() : sum_dtype(v_bmD);
  return at::bmm(probs_bnm.to(factors), v_bmD.to(factors)).to(v_bmD.scalar_type());
}

at::Tensor softmax_with_sinks(const at::Tensor& scores_xHn, const at::Tensor& sinks_H) {
  if (!sinks_H.defined()) {
    return at::softmax(scores_xHn, -1);
  }
  std::vector<int64_t> shape = scores_xHn.sizes().vec();
  shape.back() = 1;
  const at::Tensor column = sinks_H.to(scores_xHn.scalar_type()).unsqueeze(1).expand(shape);
  return at::softmax(at::cat({scores_xHn, column}, -1), -1).narrow(-1, 0, scores_xHn.size(-1));
}

}  // namespace ringside::engine
