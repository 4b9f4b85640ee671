#include "engine/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace ringside::engine {

AdamW::AdamW(std::vector<ParamUnit*> units, AdamWOptions options)
    : units_(std::move(units)), options_(options), moments_(units_) {
  TORCH_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
              "AdamW: betas must be in [0, 1), got ", options.beta1, " and ", options.beta2);
  TORCH_CHECK(options.eps >= 0 && options.weight_decay >= 0,
              "AdamW: eps and weight_decay must not be negative, got ", options.eps, " and ",
              options.weight_decay);
}

AdamW::Factors AdamW::factors_on(c10::Device device, const GradientScale& gradients) const {
  const auto there = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device) : tensor;
  };
  Factors factors{there(gradients.scale), {}, there(gradients.skip)};
  // The kernel's own factor is fp32, which would cost doubles their digits.
  if (factors.scale.defined() && units_.front()->flat().scalar_type() != at::kDouble) {
    factors.divisor = std::exchange(factors.scale, at::Tensor()).reciprocal().to(at::kFloat);
  }
  return factors;
}

void AdamW::step(double learning_rate, const GradientScale& gradients) {
  const at::NoGradGuard no_grad;
  ++step_count_;
  Factors factors;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const c10::Device device = units_[u]->flat().device();
    if (u == 0 || device != units_[u - 1]->flat().device()) {
      factors = factors_on(device, gradients);
    }
    units_[u]->gathered().await_readers(
        c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    update(u, moments_.borrow(u), learning_rate, factors);
    moments_.give_back(u);
    // The fused kernel does not: a backward of weights that it replaced shall be an error.
    units_[u]->flat().unsafeGetTensorImpl()->bump_version();
    units_[u]->changed();
  }
}

// Runs LibTorch's fused kernel, which reads parameter, gradient and moments once. It takes the step
// number after the increment, as one tensor a parameter, and divides by grad_scale.
void AdamW::update(std::size_t u, const Moments& moments, double learning_rate,
                   const Factors& factors) {
  const ParamUnit& unit = *units_[u];
  const at::Tensor flat_grad = unit.grad();
  if (factors.scale.defined()) {
    flat_grad.mul_(factors.scale);
  }
  const auto params = unit.storage().slices(), grads = unit.storage().slices_of(flat_grad);
  const auto firsts = unit.storage().slices_of(moments.exp_avg),
             seconds = unit.storage().slices_of(moments.exp_avg_sq);
  const at::Tensor step = at::full({}, static_cast<double>(step_count_),
                                   flat_grad.options().dtype(at::kFloat).pinned_memory(false));
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
  };
  for (const bool decays : {true, false}) {
    std::vector<at::Tensor> p, g, m, v;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if ((options_.decays_vectors || params[i].shape.size() > 1) == decays) {
        p.push_back(params[i].values);
        g.push_back(grads[i].values);
        m.push_back(firsts[i].values);
        v.push_back(seconds[i].values);
      }
    }
    if (!p.empty()) {
      at::_fused_adamw_(p, g, m, v, {}, std::vector<at::Tensor>(p.size(), step), learning_rate,
                        options_.beta1, options_.beta2, decays ? options_.weight_decay : 0.0,
                        options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                        if_defined(factors.divisor), if_defined(factors.skip));
    }
  }
}

void AdamW::set_step_count(int64_t count) {
  TORCH_CHECK(count >= 0, "AdamW: the step count must not be negative, got ", count);
  step_count_ = count;
}

std::vector<NamedSlice> AdamW::named_state() const {
  std::vector<NamedSlice> state;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    std::ranges::move(named_state(u), std::back_inserter(state));
  }
  return state;
}

std::vector<NamedSlice> AdamW::named_state(std::size_t unit) const {
  std::vector<NamedSlice> state;
  const auto add = [&](const std::string& prefix, std::vector<NamedSlice> slices) {
    for (NamedSlice& slice : slices) {
      slice.name = prefix + slice.name;
      state.push_back(std::move(slice));
    }
  };
  const Moments& stored = moments_.stored(unit);
  add("exp_avg.", units_.at(unit)->storage().slices_of(stored.exp_avg));
  add("exp_avg_sq.", units_[unit]->storage().slices_of(stored.exp_avg_sq));
  return state;
}

}  // namespace ringside::engine
