#include "engine/nn/swiglu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

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

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_s2F) {
  TORCH_CHECK(
      gate_up_s2F.dim() == 2 && gate_up_s2F.size(1) % 2 == 0 && gate_up_s2F.is_floating_point(),
      "swiglu takes floating-point [s, 2F], got ", gate_up_s2F.scalar_type(), " ",
      gate_up_s2F.sizes());
  return Swiglu::apply(gate_up_s2F);
}

}  // namespace ringside::engine
