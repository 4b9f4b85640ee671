#include "engine/io/stacked_experts.h"

#include <ATen/ATen.h>

namespace ringside::engine {
namespace {

constexpr const char* kFirst = "mlp.experts.0.gate_proj.weight";

}  // namespace

bool StackedExperts::holds(const ParamSpec& first) const {
  return stacks_ != ExpertStacks::kNone && first.name.ends_with(kFirst);
}

std::vector<ParamSpec> StackedExperts::specs(const ParamSpec& first) const {
  const std::string layer = first.name.substr(0, first.name.size() - std::string(kFirst).size());
  return {{layer + kStackedGateUp, gate_up_shape()}, {layer + kStackedDown, down_shape()}};
}

std::vector<at::Tensor> StackedExperts::tensors(const at::Tensor& unit) const {
  const at::Tensor experts = unit.view({count_, 3 * size_ * hidden_});
  const int64_t gate_up = 2 * size_ * hidden_;
  const at::Tensor stacks[] = {
      experts.narrow(1, 0, gate_up).unflatten(1, {2 * size_, hidden_}),
      experts.narrow(1, gate_up, size_ * hidden_).unflatten(1, {hidden_, size_})};
  std::vector<at::Tensor> result;
  for (const at::Tensor& stack : stacks) {
    result.push_back((inputs_first() ? stack.transpose(1, 2) : stack).contiguous());
  }
  return result;
}

}  // namespace ringside::engine
