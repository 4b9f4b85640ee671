#include "sp/attention/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "sp/attention/executor.h"
#include "sp/attention/sinks.h"
#include "sp/heads/head_exchange.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Holds the call's context in an IValue from forward to backward.
struct ContextHolder final : torch::CustomClassHolder {
  ContextHolder(AttentionContext c, double s) : context(std::move(c)), softmax_scale(s) {}
  AttentionContext context;
  double softmax_scale;
};

c10::IValue hold(const AttentionContext& context, double softmax_scale) {
  return c10::IValue::make_capsule(c10::make_intrusive<ContextHolder>(context, softmax_scale));
}

c10::intrusive_ptr<ContextHolder> held(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<ContextHolder>(ctx->saved_data["context"].toCapsule());
}

AttentionExchange exchange_of(const AttentionPlan& plan) {
  return attention_exchange(plan.head_split, plan.ulysses_rows);
}

// Runs the forward and saves for the backward: the query side and key side of this rank's heads,
// and their sinks.
at::Tensor forward_share(AutogradContext* ctx, const at::Tensor& q_ShD, const at::Tensor& kv_S2kD,
                         const std::optional<at::Tensor>& sinks_H, const AttentionContext& context,
                         double softmax_scale, KeptResults* kept) {
  const AttentionPlan& plan = context.plan();
  at::Tensor sinks_h;
  if (sinks_H) {
    const Range own = plan.head_split.query_heads_of[plan.ulysses_rank];
    sinks_h = sinks_H->narrow(0, own.begin, own.size());
  }
  const variable_list result = compute_once(kept, [&]() -> variable_list {
    PartialAttention partial =
        run_forward(q_ShD, kv_S2kD, *context.prepared, *context.ring, softmax_scale);
    if (sinks_h.defined()) {
      partial = apply_sinks(partial, sinks_h);
    }
    return {partial.out.to(q_ShD.scalar_type()), partial.lse};
  });
  ctx->save_for_backward({q_ShD, kv_S2kD, result[0], result[1], sinks_h});
  ctx->saved_data["context"] = hold(context, softmax_scale);
  return result[0];
}

struct ShareBackward {
  ShareGradients grads;
  at::Tensor dsinks_H;  // undefined without sinks
};

ShareBackward backward_share(AutogradContext* ctx, const ContextHolder& holder,
                             const at::Tensor& dout_ShD) {
  const auto saved = ctx->get_saved_variables();
  const AttentionPlan& plan = holder.context.plan();
  const QuerySide side{dout_ShD, saved[0], saved[2], saved[3]};
  ShareBackward result{run_backward(side, saved[1], *holder.context.prepared, *holder.context.ring,
                                    holder.softmax_scale),
                       {}};
  const at::Tensor& sinks_h = saved[4];
  if (sinks_h.defined()) {
    const Range own = plan.head_split.query_heads_of[plan.ulysses_rank];
    result.dsinks_H = at::zeros({plan.heads.query_heads().size()}, sinks_h.options());
    result.dsinks_H.narrow(0, own.begin, own.size())
        .copy_(sinks_gradient(sinks_h, {saved[2], saved[3]}, dout_ShD));
  }
  return result;
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& q_sHD, const Variable& k_sKD,
                          const Variable& v_sKD, const std::optional<at::Tensor>& sinks_H,
                          const AttentionContext& context, double softmax_scale,
                          KeptResults* kept) {
    const AttentionPlan& plan = context.plan();
    // Without an exchange these are this rank's own tensors, which the caller has in both runs.
    KeptResults* const exchanged = plan.ulysses_size() > 1 ? kept : nullptr;
    const AttentionExchange exchange = exchange_of(plan);
    const variable_list heads = compute_once(exchanged, [&]() -> variable_list {
      auto [q_ShD, kv_S2kD] = qkv_to_heads(q_sHD, k_sKD, v_sKD, exchange, *context.ulysses);
      return {q_ShD, kv_S2kD};
    });
    const at::Tensor out_ShD =
        forward_share(ctx, heads[0], heads[1], sinks_H, context, softmax_scale, kept);
    return compute_once(exchanged, [&]() -> variable_list {
      return {to_sequence(out_ShD, exchange.query, *context.ulysses, "ulysses_output")};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder = held(ctx);
    const AttentionPlan& plan = holder->context.plan();
    Communicator& ulysses = *holder->context.ulysses;
    const auto wire = grads[0].scalar_type();
    const AttentionExchange exchange = exchange_of(plan);
    const auto [share, dsinks] =
        backward_share(ctx, *holder, to_heads(grads[0], exchange.query, ulysses, "ulysses_query"));
    // Partial gradients that are summed after the exchange stay in the accumulation dtype.
    const auto kv_wire = plan.head_split.kv_heads_shared ? accumulation_dtype(wire) : wire;
    const auto [dq, dk, dv] = qkv_gradients_to_sequence(
        share.dq_ShD.to(wire), share.dkv_S2kD.to(kv_wire), exchange, ulysses);
    return {dq, dk.to(wire), dv.to(wire), dsinks, Variable(), Variable(), Variable()};
  }
};

class ShareAttentionFunction : public torch::autograd::Function<ShareAttentionFunction> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& q_ShD, const Variable& k_SkD,
                          const Variable& v_SkD, const std::optional<at::Tensor>& sinks_H,
                          const AttentionContext& context, double softmax_scale,
                          KeptResults* kept) {
    return forward_share(ctx, q_ShD, at::cat({k_SkD, v_SkD}, 1), sinks_H, context, softmax_scale,
                         kept);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder = held(ctx);
    const auto [share, dsinks] = backward_share(ctx, *holder, grads[0]);
    const auto wire = grads[0].scalar_type();
    const at::Tensor dkv = share.dkv_S2kD.to(wire);
    const int64_t k = dkv.size(1) / 2;
    return {share.dq_ShD.to(wire),
            dkv.narrow(1, 0, k),
            dkv.narrow(1, k, k),
            dsinks,
            Variable(),
            Variable(),
            Variable()};
  }
};

std::optional<at::Tensor> sinks_of(const AttentionOptions& options) {
  return options.sinks_H.defined() ? std::make_optional(options.sinks_H) : std::nullopt;
}

struct CallShape {
  int64_t rows;
  int64_t query_heads;
  int64_t kv_heads;
};

void check_placed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const PreparedPlan& prepared) {
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() &&
                  q.scalar_type() == prepared.wire_dtype(),
              "attention: q, k, v must share a dtype, the one that the plan was prepared for, got ",
              q.scalar_type(), ", ", k.scalar_type(), ", ", v.scalar_type(), ", expected ",
              prepared.wire_dtype());
  TORCH_CHECK(q.device() == prepared.device() && k.device() == prepared.device() &&
                  v.device() == prepared.device(),
              "attention: q, k and v on ", q.device(), ", ", k.device(), " and ", v.device(),
              ", the plan was prepared for ", prepared.device());
}

void check_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const AttentionContext& context, const AttentionOptions& options,
                const CallShape& expected) {
  const AttentionPlan& plan = context.plan();
  const auto shape = [&](int64_t heads) {
    return std::vector<int64_t>{expected.rows, heads, plan.heads.head_dim};
  };
  TORCH_CHECK(q.sizes() == shape(expected.query_heads), "attention: q has shape ", q.sizes(),
              ", the plan expects ", shape(expected.query_heads));
  TORCH_CHECK(k.sizes() == shape(expected.kv_heads) && v.sizes() == k.sizes(),
              "attention: k and v have shapes ", k.sizes(), " and ", v.sizes(),
              ", the plan expects ", shape(expected.kv_heads));
  check_placed(q, k, v, *context.prepared);
  TORCH_CHECK(options.dropout == 0.0, "attention: dropout ", options.dropout,
              " cannot be honoured: no method draws the same mask under every split; expected 0");
  TORCH_CHECK(options.logit_softcap == 0.0, "attention: logit soft-cap ", options.logit_softcap,
              " cannot be honoured: the flash kernels have none; expected 0");
  const at::Tensor& sinks = options.sinks_H;
  const int64_t heads = plan.heads.query_heads().size();
  TORCH_CHECK(!sinks.defined() || (sinks.dim() == 1 && sinks.size(0) == heads &&
                                   sinks.scalar_type() == accumulation_dtype(q.scalar_type()) &&
                                   sinks.device() == q.device()),
              "attention: sinks of shape ", sinks.sizes(), " and dtype ", sinks.scalar_type(),
              " on ", sinks.device(), ", expected [", heads, "], ",
              accumulation_dtype(q.scalar_type()), " and ", q.device());
}

void check_context(const AttentionContext& context) {
  TORCH_CHECK(context.prepared && context.ulysses && context.ring, "attention: incomplete context");
  const AttentionPlan& plan = context.plan();
  TORCH_CHECK(
      context.ulysses->size() == plan.ulysses_size() && context.ring->size() == plan.ring_size(),
      "attention: groups of ", context.ulysses->size(), " x ", context.ring->size(),
      " ranks, the plan expects ulysses ", plan.ulysses_size(), " x ring ", plan.ring_size());
}

}  // namespace

at::Tensor attention(const at::Tensor& q_sHD, const at::Tensor& k_sKD, const at::Tensor& v_sKD,
                     const AttentionContext& context, const AttentionOptions& options) {
  check_context(context);
  const AttentionPlan& plan = context.plan();
  check_call(q_sHD, k_sKD, v_sKD, context, options,
             {plan.local_rows(), plan.heads.query_heads().size(), plan.heads.kv_heads().size()});
  return AttentionFunction::apply(q_sHD, k_sKD, v_sKD, sinks_of(options), context,
                                  options.softmax_scale, options.kept.get());
}

at::Tensor share_attention(const at::Tensor& q_ShD, const at::Tensor& k_SkD,
                           const at::Tensor& v_SkD, const AttentionContext& context,
                           const AttentionOptions& options) {
  check_context(context);
  const AttentionPlan& plan = context.plan();
  check_call(q_ShD, k_SkD, v_SkD, context, options,
             {plan.share_rows, plan.local_query_heads(), plan.local_kv_heads()});
  return ShareAttentionFunction::apply(q_ShD, k_SkD, v_SkD, sinks_of(options), context,
                                       options.softmax_scale, options.kept.get());
}

}  // namespace ringside::sp
