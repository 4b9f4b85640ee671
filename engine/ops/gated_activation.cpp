#include "engine/ops/gated_activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "engine/ops/bf16_rows.h"
#include "engine/ops/dispatch.h"

namespace ringside::engine {
namespace {

constexpr const char* kTanh = "tanh";

at::Tensor swiglu_on_cpu(const at::Tensor& gate_up) {
  const int64_t f = gate_up.size(1) / 2;
  if (bf16::takes({gate_up})) {
    at::Tensor y = at::empty({gate_up.size(0), f}, gate_up.options());
    bf16::swiglu(bf16::words(gate_up), gate_up.size(0), f, bf16::words_to_write(y));
    return y;
  }
  return at::silu(gate_up.narrow(1, 0, f)).mul_(gate_up.narrow(1, f, f));
}

// Writes both halves into one buffer, which saves a cat.
at::Tensor swiglu_backward_on_cpu(const at::Tensor& dy, const at::Tensor& gate_up) {
  const int64_t f = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, f), up = gate_up.narrow(1, f, f);
  at::Tensor d_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  if (bf16::takes({dy, gate_up})) {
    bf16::swiglu_gradient(bf16::words(dy), bf16::words(gate_up), gate_up.size(0), f,
                          bf16::words_to_write(d_gate_up));
    return d_gate_up;
  }
  at::Tensor d_gate = d_gate_up.narrow(1, 0, f), d_up = d_gate_up.narrow(1, f, f);
  at::silu_backward_out(d_gate, dy * up, gate);
  at::mul_out(d_up, dy, at::silu(gate));
  return d_gate_up;
}

at::Tensor geglu_on_cpu(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, 1);
  return at::gelu(parts[0], kTanh).mul_(parts[1]);
}

at::Tensor geglu_backward_on_cpu(const at::Tensor& dy, const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, 1);
  return at::cat(
      {at::gelu_backward(dy * parts[1], parts[0], kTanh), dy * at::gelu(parts[0], kTanh)}, 1);
}

// Clamped gate and up, and sigmoid(alpha gate).
std::array<at::Tensor, 3> clamped_parts(const at::Tensor& gate_up, double limit, double alpha) {
  const at::Tensor pairs = gate_up.unflatten(1, {-1, 2});
  const at::Tensor gate = pairs.select(2, 0).clamp_max(limit);
  return {gate, pairs.select(2, 1).clamp(-limit, limit), at::sigmoid(gate * alpha)};
}

at::Tensor clamped_swiglu_on_cpu(const at::Tensor& gate_up, double limit, double alpha) {
  const auto [gate, up, sigmoid] = clamped_parts(gate_up, limit, alpha);
  return (up + 1).mul_(gate * sigmoid);
}

at::Tensor clamped_swiglu_backward_on_cpu(const at::Tensor& dy, const at::Tensor& gate_up,
                                          double limit, double alpha) {
  const at::Tensor pairs = gate_up.unflatten(1, {-1, 2});
  const auto [gate, up, sigmoid] = clamped_parts(gate_up, limit, alpha);
  const at::Tensor d_gated = dy * (up + 1);
  const at::Tensor slope = sigmoid * (1 + gate * alpha * (1 - sigmoid));
  const at::Tensor d_gate = (d_gated * slope).mul_(pairs.select(2, 0) <= limit);
  const at::Tensor d_up = (dy * gate * sigmoid).mul_(pairs.select(2, 1).abs() <= limit);
  return at::stack({d_gate, d_up}, 2).flatten(1);
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(m, "swiglu(Tensor gate_up) -> Tensor", TORCH_FN(swiglu_on_cpu));
  define_operator(m, "swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor",
                  TORCH_FN(swiglu_backward_on_cpu));
  define_operator(m, "geglu(Tensor gate_up) -> Tensor", TORCH_FN(geglu_on_cpu));
  define_operator(m, "geglu_backward(Tensor dy, Tensor gate_up) -> Tensor",
                  TORCH_FN(geglu_backward_on_cpu));
  define_operator(m, "clamped_swiglu(Tensor gate_up, float limit, float alpha) -> Tensor",
                  TORCH_FN(clamped_swiglu_on_cpu));
  define_operator(m,
                  "clamped_swiglu_backward(Tensor dy, Tensor gate_up, float limit, float alpha) "
                  "-> Tensor",
                  TORCH_FN(clamped_swiglu_backward_on_cpu));
}

}  // namespace

namespace operators {

at::Tensor swiglu(const at::Tensor& gate_up) {
  static const Operator<decltype(swiglu)> op("ringside::swiglu");
  return op(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  static const Operator<decltype(swiglu_backward)> op("ringside::swiglu_backward");
  return op(dy, gate_up);
}

at::Tensor geglu(const at::Tensor& gate_up) {
  static const Operator<decltype(geglu)> op("ringside::geglu");
  return op(gate_up);
}

at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  static const Operator<decltype(geglu_backward)> op("ringside::geglu_backward");
  return op(dy, gate_up);
}

at::Tensor clamped_swiglu(const at::Tensor& gate_up, double limit, double alpha) {
  static const Operator<decltype(clamped_swiglu)> op("ringside::clamped_swiglu");
  return op(gate_up, limit, alpha);
}

at::Tensor clamped_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, double limit,
                                   double alpha) {
  static const Operator<decltype(clamped_swiglu_backward)> op("ringside::clamped_swiglu_backward");
  return op(dy, gate_up, limit, alpha);
}

}  // namespace operators

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F) {
    ctx->save_for_backward({gate_up_s2F});
    return operators::swiglu(gate_up_s2F);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {operators::swiglu_backward(grads[0], ctx->get_saved_variables()[0])};
  }
};

struct Geglu : torch::autograd::Function<Geglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F) {
    ctx->save_for_backward({gate_up_s2F});
    return operators::geglu(gate_up_s2F);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {operators::geglu_backward(grads[0], ctx->get_saved_variables()[0])};
  }
};

struct ClampedSwiglu : torch::autograd::Function<ClampedSwiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F, double limit,
                            double alpha) {
    ctx->save_for_backward({gate_up_s2F});
    ctx->saved_data["limit"] = limit;
    ctx->saved_data["alpha"] = alpha;
    return operators::clamped_swiglu(gate_up_s2F, limit, alpha);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {operators::clamped_swiglu_backward(grads[0], ctx->get_saved_variables()[0],
                                               ctx->saved_data["limit"].toDouble(),
                                               ctx->saved_data["alpha"].toDouble()),
            at::Tensor(), at::Tensor()};
  }
};

void check_gate_up(const char* function, const at::Tensor& gate_up_s2F) {
  TORCH_CHECK(
      gate_up_s2F.dim() == 2 && gate_up_s2F.size(1) % 2 == 0 && gate_up_s2F.is_floating_point(),
      function, " takes floating-point [s, 2F], got ", gate_up_s2F.scalar_type(), " ",
      gate_up_s2F.sizes());
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_s2F) {
  check_gate_up("swiglu", gate_up_s2F);
  return Swiglu::apply(gate_up_s2F);
}

at::Tensor geglu(const at::Tensor& gate_up_s2F) {
  check_gate_up("geglu", gate_up_s2F);
  return Geglu::apply(gate_up_s2F);
}

at::Tensor clamped_swiglu(const at::Tensor& gate_up_s2F, double limit, double alpha) {
  check_gate_up("clamped_swiglu", gate_up_s2F);
  TORCH_CHECK(limit > 0, "clamped_swiglu: the limit must be positive, got ", limit);
  return ClampedSwiglu::apply(gate_up_s2F, limit, alpha);
}

}  // namespace ringside::engine
