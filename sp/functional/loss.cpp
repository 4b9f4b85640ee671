#include "sp/functional/loss.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "sp/mesh/saved_context.h"

namespace ringside::sp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class ReduceLoss : public torch::autograd::Function<ReduceLoss> {
 public:
  // weight: factor from this rank's loss to the sum over its tokens; 0 without a token.
  static Variable forward(AutogradContext* ctx, const Variable& loss, double weight, int64_t tokens,
                          Communicator* comm) {
    at::Tensor sums = at::zeros({2}, loss.options().dtype(at::kDouble));
    // Skipped rather than multiplied by 0, because the loss of no token may be NaN.
    if (tokens > 0) {
      sums[0] = loss.to(at::kDouble).reshape({}) * weight;
      sums[1] = tokens;
    }
    comm->all_reduce_sum(sums, "loss");
    // Counts are integers, so the clamp only replaces 0.
    const at::Tensor total = sums[1].clamp_min(1);
    ctx->save_for_backward({weight / total});
    return (sums[0] / total).to(loss.scalar_type()).reshape(loss.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor share = ctx->get_saved_variables()[0];
    return {(grads[0].to(at::kDouble) * share).to(grads[0].scalar_type()), Variable(), Variable(),
            Variable()};
  }
};

}  // namespace

at::Tensor reduce_sequence_parallel_loss(const at::Tensor& loss, int64_t num_valid_tokens,
                                         Communicator& comm, LossForm form) {
  if (num_valid_tokens < 0) {
    throw std::invalid_argument(
        "reduce_sequence_parallel_loss: " + std::to_string(num_valid_tokens) + " valid tokens");
  }
  TORCH_CHECK(loss.numel() == 1 && loss.is_floating_point(),
              "reduce_sequence_parallel_loss: one float element is needed, got ",
              loss.scalar_type(), " ", loss.sizes());
  const double weight =
      form == LossForm::kMean ? static_cast<double>(num_valid_tokens) : num_valid_tokens > 0;
  return ReduceLoss::apply(loss, weight, num_valid_tokens, &comm);
}

}  // namespace ringside::sp
