#include "engine/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ringside::engine {

AdamW::AdamW(std::vector<ParamUnit*> units, AdamWOptions options)
    : units_(std::move(units)), options_(options) {
  TORCH_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
              "AdamW: betas must be in [0, 1), got ", options.beta1, " and ", options.beta2);
  TORCH_CHECK(options.eps >= 0 && options.weight_decay >= 0,
              "AdamW: eps and weight_decay must not be negative, got ", options.eps, " and ",
              options.weight_decay);
  decayed_.weight_decay = options.weight_decay;
  undecayed_.weight_decay = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const ParamUnit& unit = *units_[u];
    exp_avg_.push_back(at::zeros_like(unit.flat().detach()));
    exp_avg_sq_.push_back(at::zeros_like(unit.flat().detach()));
    const auto params = unit.slices();
    const auto exp_avgs = unit.slices_of(exp_avg_[u]);
    const auto exp_avg_sqs = unit.slices_of(exp_avg_sq_[u]);
    for (std::size_t i = 0; i < params.size(); ++i) {
      Group& group = params[i].shape.size() > 1 ? decayed_ : undecayed_;
      group.params.push_back(params[i].values);
      group.exp_avgs.push_back(exp_avgs[i].values);
      group.exp_avg_sqs.push_back(exp_avg_sqs[i].values);
      group.sources.emplace_back(u, i);
    }
  }
}

void AdamW::step(double learning_rate, const GradientScale& gradients) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat_grads;
  flat_grads.reserve(units_.size());
  for (const ParamUnit* unit : units_) {
    const c10::Device device = unit->flat().device();
    unit->await_readers(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    flat_grads.push_back(unit->grad());
  }
  GradientScale in_kernel = gradients;
  // The kernel's own factor is fp32, which would cost doubles their digits.
  if (gradients.scale.defined() && flat_grads.front().scalar_type() == at::kDouble) {
    for (const at::Tensor& grad : flat_grads) {
      grad.mul_(gradients.scale);
    }
    in_kernel.scale.reset();
  }
  ++step_count_;
  update(decayed_, flat_grads, learning_rate, in_kernel);
  update(undecayed_, flat_grads, learning_rate, in_kernel);
  for (const ParamUnit* unit : units_) {
    unit->changed();
  }
}

// Runs LibTorch's fused kernel, which reads parameter, gradient and moments once. It takes the step
// number after the increment, as one tensor a parameter, and divides by grad_scale.
void AdamW::update(Group& group, const std::vector<at::Tensor>& flat_grads, double learning_rate,
                   const GradientScale& gradients) {
  if (group.params.empty()) {
    return;
  }
  std::vector<std::vector<NamedSlice>> slices;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    slices.push_back(units_[u]->slices_of(flat_grads[u]));
  }
  std::vector<at::Tensor> grads;
  grads.reserve(group.sources.size());
  for (const auto& [unit, slice] : group.sources) {
    grads.push_back(slices[unit][slice].values);
  }
  const at::Tensor step =
      at::full({}, static_cast<double>(step_count_), group.params[0].options().dtype(at::kFloat));
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
  };
  const at::Tensor divisor =
      gradients.scale.defined() ? gradients.scale.reciprocal().to(at::kFloat) : at::Tensor();
  const std::vector<at::Tensor> steps(group.params.size(), step);
  at::_fused_adamw_(group.params, grads, group.exp_avgs, group.exp_avg_sqs, {}, steps,
                    learning_rate, options_.beta1, options_.beta2, group.weight_decay, options_.eps,
                    /*amsgrad=*/false, /*maximize=*/false, if_defined(divisor),
                    if_defined(gradients.skip));
}

void AdamW::set_step_count(int64_t count) {
  TORCH_CHECK(count >= 0, "AdamW: the step count must not be negative, got ", count);
  step_count_ = count;
}

std::vector<NamedSlice> AdamW::named_state() const {
  std::vector<NamedSlice> state;
  const auto add = [&](const std::string& prefix, std::vector<NamedSlice> slices) {
    for (NamedSlice& slice : slices) {
      slice.name = prefix + slice.name;
      state.push_back(std::move(slice));
    }
  };
  for (std::size_t u = 0; u < units_.size(); ++u) {
    add("exp_avg.", units_[u]->slices_of(exp_avg_[u]));
    add("exp_avg_sq.", units_[u]->slices_of(exp_avg_sq_[u]));
  }
  return state;
}

}  // namespace ringside::engine
