#include "sp/attention/attention.h"

#include <ATen/ATen.h>

#include <torch/csrc/autograd/custom_function.h>
#include <utility>

#include "sp/attention/ring.h"
#include "sp/attention/ulysses.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Carries the call's context from forward to backward inside an IValue.
struct ContextHolder final : torch::CustomClassHolder {
  ContextHolder(AttentionContext c, double s) : context(std::move(c)), softmax_scale(s) {}
  AttentionContext context;
  double softmax_scale;
};

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& q_sHD, const Variable& k_sKD,
                          const Variable& v_sKD, const AttentionContext& context,
                          double softmax_scale) {
    const AttentionPlan& plan = *context.plan;
    const at::Tensor q_ShD = sequence_to_heads(q_sHD, plan, *context.ulysses);
    const at::Tensor kv_S2kD = kv_sequence_to_heads(k_sKD, v_sKD, plan, *context.ulysses);
    const auto result = ring_forward(q_ShD, kv_S2kD, plan, *context.ring, softmax_scale);
    const at::Tensor out_ShD = result.out.to(q_sHD.scalar_type());
    ctx->save_for_backward({q_ShD, kv_S2kD, out_ShD, result.lse});
    ctx->saved_data["context"] = c10::IValue::make_capsule(
        c10::make_intrusive<ContextHolder>(context, softmax_scale));
    return heads_to_sequence(out_ShD, plan, *context.ulysses);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<ContextHolder>(ctx->saved_data["context"].toCapsule());
    const AttentionContext& context = holder->context;
    const AttentionPlan& plan = *context.plan;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q_ShD = saved[0], &kv_S2kD = saved[1], &out_ShD = saved[2], &lse_Sh = saved[3];
    const auto wire = q_ShD.scalar_type();
    const at::Tensor dout_ShD = sequence_to_heads(grads[0], plan, *context.ulysses);
    const auto ring = ring_backward(dout_ShD, q_ShD, kv_S2kD, out_ShD, lse_Sh, plan, *context.ring,
                                    holder->softmax_scale);
    const at::Tensor dq = heads_to_sequence(ring.dq_ShD.to(wire), plan, *context.ulysses);
    // Partial gradients that are still to be summed stay in the accumulation dtype on the wire.
    const auto kv_wire = plan.kv_heads_shared ? ring.dkv_S2kD.scalar_type() : wire;
    const auto [dk, dv] = kv_heads_to_sequence(ring.dkv_S2kD.to(kv_wire), plan, *context.ulysses);
    return {dq, dk.to(wire), dv.to(wire), Variable(), Variable()};
  }
};

void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const AttentionContext& context) {
  TORCH_CHECK(context.plan && context.ulysses && context.ring, "attention: incomplete context");
  const AttentionPlan& plan = *context.plan;
  const auto shape = [&](int64_t heads) {
    return std::vector<int64_t>{plan.local_rows(), heads, plan.heads.head_dim};
  };
  TORCH_CHECK(q.sizes() == shape(plan.heads.num_query_heads), "attention: q has shape ", q.sizes(),
              ", the plan expects ", shape(plan.heads.num_query_heads));
  TORCH_CHECK(k.sizes() == shape(plan.heads.num_kv_heads) && v.sizes() == k.sizes(),
              "attention: k and v have shapes ", k.sizes(), " and ", v.sizes(),
              ", the plan expects ", shape(plan.heads.num_kv_heads));
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
              "attention: q, k, v must share a dtype, got ", q.scalar_type(), ", ", k.scalar_type(),
              ", ", v.scalar_type());
  TORCH_CHECK(context.ulysses->size() == plan.ulysses_size() && context.ring->size() == plan.ring_size(),
              "attention: groups of ", context.ulysses->size(), " x ", context.ring->size(),
              " ranks, the plan expects ulysses ", plan.ulysses_size(), " x ring ", plan.ring_size());
}

}  // namespace

at::Tensor attention(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                     const AttentionContext& context, double softmax_scale) {
  check_call(q_sHD, k_sKD, v_sKD, context);
  return AttentionFunction::apply(q_sHD, k_sKD, v_sKD, context, softmax_scale);
}

}  // namespace ringside::sp
