#include "engine/nn/swiglu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "engine/nn/operators.h"

namespace ringside::engine {
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

constexpr const char* kTanh = "tanh";

struct Geglu : torch::autograd::Function<Geglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F) {
    ctx->save_for_backward({gate_up_s2F});
    const auto parts = gate_up_s2F.chunk(2, 1);
    return at::gelu(parts[0], kTanh).mul_(parts[1]);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto parts = ctx->get_saved_variables()[0].chunk(2, 1);
    return {at::cat({at::gelu_backward(grads[0] * parts[1], parts[0], kTanh),
                     grads[0] * at::gelu(parts[0], kTanh)},
                    1)};
  }
};

struct ClampedSwiglu : torch::autograd::Function<ClampedSwiglu> {
  static constexpr double kLimit = 7.0, kAlpha = 1.702;

  // gate, up and sigmoid(alpha gate).
  static std::array<at::Tensor, 3> parts(const at::Tensor& gate_up_s2F) {
    const at::Tensor pairs = gate_up_s2F.unflatten(1, {-1, 2});
    const at::Tensor gate = pairs.select(2, 0).clamp_max(kLimit);
    return {gate, pairs.select(2, 1).clamp(-kLimit, kLimit), at::sigmoid(gate * kAlpha)};
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F) {
    ctx->save_for_backward({gate_up_s2F});
    const auto [gate, up, sigmoid] = parts(gate_up_s2F);
    return (up + 1).mul_(gate * sigmoid);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor pairs = gate_up.unflatten(1, {-1, 2});
    const auto [gate, up, sigmoid] = parts(gate_up);
    const at::Tensor d_gated = grads[0] * (up + 1);
    const at::Tensor slope = sigmoid * (1 + gate * kAlpha * (1 - sigmoid));
    const at::Tensor d_gate = (d_gated * slope).mul_(pairs.select(2, 0) <= kLimit);
    const at::Tensor d_up = (grads[0] * gate * sigmoid).mul_(pairs.select(2, 1).abs() <= kLimit);
    return {at::stack({d_gate, d_up}, 2).flatten(1)};
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

at::Tensor clamped_swiglu(const at::Tensor& gate_up_s2F) {
  check_gate_up("clamped_swiglu", gate_up_s2F);
  return ClampedSwiglu::apply(gate_up_s2F);
}

}  // namespace ringside::engine
