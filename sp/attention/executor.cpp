#include "sp/attention/executor.h"

#include <ATen/ATen.h>

#include "sp/attention/kv_transport.h"

namespace ringside::sp {

PartialAttention run_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                             const PreparedPlan& prepared, Communicator& ring,
                             double softmax_scale) {
  const auto compute = prepared.compute_dtype();
  const at::Tensor q = q_ShD.to(compute);
  PartialAttention result;
  const auto transport =
      make_kv_transport(kv_S2kD, prepared, ring, prepared.plan().options.ring_impl);
  for (int64_t s = 0; s < transport->num_ring_steps(); ++s) {
    const at::Tensor kv = transport->load(s).to(compute);
    prepared.forward({transport->plan_step(s), transport->chunk(s), softmax_scale}, q, kv, result);
  }
  return result;
}

ShareGradients run_backward(const QuerySide& side, const at::Tensor& kv_S2kD,
                            const PreparedPlan& prepared, Communicator& ring,
                            double softmax_scale) {
  const auto compute = prepared.compute_dtype();
  const QuerySide converted{side.dout_ShD.to(compute), side.q_ShD.to(compute),
                            side.out_ShD.to(compute), side.lse_Sh};
  at::Tensor dq_ShD;
  const auto transport =
      make_kv_transport(kv_S2kD, prepared, ring, prepared.plan().backward_impl());
  for (int64_t s = 0; s < transport->num_ring_steps(); ++s) {
    const at::Tensor kv = transport->load(s).to(compute);
    transport->add_gradient(
        s, prepared.backward({transport->plan_step(s), transport->chunk(s), softmax_scale},
                             converted, kv, dq_ShD));
  }
  return {dq_ShD, transport->finish()};
}

}  // namespace ringside::sp
