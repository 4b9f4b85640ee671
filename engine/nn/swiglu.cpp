#include "engine/nn/swiglu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up_s2F) {
    ctx->save_for_backward({gate_up_s2F});
    const int64_t f = gate_up_s2F.size(1) / 2;
    return at::silu(gate_up_s2F.narrow(1, 0, f)).mul_(gate_up_s2F.narrow(1, f, f));
  }

  // Writes both halves into one buffer, which saves a cat.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor gate_up_s2F = ctx->get_saved_variables()[0];
    const int64_t f = gate_up_s2F.size(1) / 2;
    const at::Tensor gate = gate_up_s2F.narrow(1, 0, f), up = gate_up_s2F.narrow(1, f, f);
    at::Tensor d_gate_up = at::empty(gate_up_s2F.sizes(), gate_up_s2F.options());
    at::Tensor d_gate = d_gate_up.narrow(1, 0, f), d_up = d_gate_up.narrow(1, f, f);
    at::silu_backward_out(d_gate, grads[0] * up, gate);
    at::mul_out(d_up, grads[0], at::silu(gate));
    return {d_gate_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_s2F) {
  TORCH_CHECK(gate_up_s2F.dim() == 2 && gate_up_s2F.size(1) % 2 == 0, "swiglu takes [s, 2F], got ",
              gate_up_s2F.sizes());
  return Swiglu::apply(gate_up_s2F);
}

}  // namespace ringside::engine
