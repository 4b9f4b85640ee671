#include "sp/attention/executor.h"

#include <ATen/ATen.h>

#include "sp/attention/kv_transport.h"

namespace ringside::sp {

PartialAttention run_forward(const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                             const AttentionPlan& plan, const RingStepKernels& kernels,
                             Communicator& ring, double softmax_scale) {
  const auto compute = kernels.compute_dtype(q_ShD.scalar_type());
  const at::Tensor q = q_ShD.to(compute);
  const auto accumulated = q_ShD.options().dtype(accumulation_dtype(q_ShD.scalar_type()));
  // Uninitialised: every row's diagonal block initialises it before it is read.
  PartialAttention result{at::empty(q.sizes(), accumulated),
                          at::empty({q.size(0), q.size(1)}, accumulated)};
  const auto transport = make_kv_transport(kv_S2kD, plan, ring);
  for (int64_t s = 0; s < transport->num_ring_steps(); ++s) {
    const at::Tensor kv = transport->load(s).to(compute);
    kernels.forward({transport->step(s), transport->chunk(s), plan.options.window, softmax_scale},
                    q, kv, result);
  }
  return result;
}

ShareGradients run_backward(const QuerySide& side, const at::Tensor& kv_S2kD,
                            const AttentionPlan& plan, const RingStepKernels& kernels,
                            Communicator& ring, double softmax_scale) {
  const auto compute = kernels.compute_dtype(side.q_ShD.scalar_type());
  const QuerySide prepared{side.dout_ShD.to(compute), side.q_ShD.to(compute),
                           side.out_ShD.to(compute), side.lse_Sh};
  at::Tensor dq = at::zeros(side.q_ShD.sizes(), side.lse_Sh.options());
  const auto transport = make_kv_transport(kv_S2kD, plan, ring);
  for (int64_t s = 0; s < transport->num_ring_steps(); ++s) {
    const at::Tensor kv = transport->load(s).to(compute);
    at::Tensor dkv = at::zeros({transport->step(s).gradient_rows, kv.size(1), kv.size(2)},
                               side.lse_Sh.options());
    kernels.backward({transport->step(s), transport->chunk(s), plan.options.window, softmax_scale},
                     prepared, kv, dq, dkv);
    transport->add_gradient(s, std::move(dkv));
  }
  return {dq, transport->finish()};
}

}  // namespace ringside::sp
