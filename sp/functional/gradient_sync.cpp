#include "sp/functional/gradient_sync.h"

#include <ATen/ATen.h>

namespace ringside::sp {

void sync_sp_gradients(const std::vector<at::Tensor>& gradients, const ProcessGroups& comms,
                       CpFsdpMode mode) {
  const auto group = comms.tensors(axes::sp_without_fsdp(mode));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    TORCH_CHECK(gradients[i].defined(), "sync_sp_gradients: gradient ", i, " is undefined");
  }
  for (const at::Tensor& gradient : gradients) {
    at::Tensor sum = gradient.contiguous();
    group->all_reduce_sum(sum, "sp_gradients");
    if (!sum.is_same(gradient)) {
      gradient.copy_(sum);
    }
  }
}

void sync_sp_parameter_gradients(const std::vector<at::Tensor>& parameters,
                                 const ProcessGroups& comms, CpFsdpMode mode) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) {
      continue;
    }
    if (!parameter.grad().defined()) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    gradients.push_back(parameter.grad());
  }
  sync_sp_gradients(gradients, comms, mode);
}

}  // namespace ringside::sp
