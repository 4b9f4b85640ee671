#include "sp/attention/sinks.h"

#include <ATen/ATen.h>

namespace ringside::sp {

PartialAttention apply_sinks(const PartialAttention& result, const at::Tensor& sinks_h) {
  const at::Tensor lse = at::logaddexp(result.lse, sinks_h.unsqueeze(0));
  return {result.out * (result.lse - lse).exp_().unsqueeze(-1), lse};
}

at::Tensor sinks_gradient(const at::Tensor& sinks_h, const PartialAttention& applied,
                          const at::Tensor& dout_ShD) {
  const at::Tensor weight = (sinks_h.unsqueeze(0) - applied.lse).exp_();
  const at::Tensor overlap =
      (dout_ShD.to(applied.lse.scalar_type()) * applied.out.to(applied.lse.scalar_type())).sum(-1);
  return -(weight * overlap).sum(0);
}

}  // namespace ringside::sp
