#include "engine/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace ringside::engine {
namespace {

std::optional<Muon> made_muon(const std::vector<ParamUnit*>& units, const AdamWOptions& options,
                              std::optional<MuonMatrices> matrices) {
  TORCH_CHECK(options.muon.has_value() == matrices.has_value(),
              "AdamW: options of Muon and the matrices that it updates come together");
  if (!matrices) {
    return std::nullopt;
  }
  TORCH_CHECK(matrices->of_unit.size() == units.size(), "AdamW: matrices of ",
              matrices->of_unit.size(), " units for ", units.size());
  return Muon(*options.muon, std::move(*matrices));
}

}  // namespace

AdamW::AdamW(std::vector<ParamUnit*> units, AdamWOptions options,
             std::optional<MuonMatrices> matrices)
    : units_(std::move(units)),
      options_(options),
      muon_(made_muon(units_, options, std::move(matrices))),
      moments_(units_, second_elements()) {
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
    const Moments moments = moments_.borrow(u);
    update(u, moments, learning_rate, factors);
    update_matrices(u, moments, learning_rate, factors);
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
  const auto params = slices_of(u, unit.flat().detach()), grads = slices_of(u, flat_grad);
  const auto firsts = slices_of(u, moments.exp_avg), seconds = second_slices(u, moments.exp_avg_sq);
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

void AdamW::update_matrices(std::size_t u, const Moments& moments, double learning_rate,
                            const Factors& factors) {
  if (!muon_) {
    return;
  }
  const UnitStorage& storage = units_[u]->storage();
  const at::Tensor flat_grad = storage.grad();
  for (std::size_t i = 0; factors.divisor.defined() && i < storage.layout().specs().size(); ++i) {
    if (is_muons(u, i)) {
      for (const NamedSlice& slice : storage.slices_of(flat_grad, i)) {
        slice.values.div_(factors.divisor);
      }
    }
  }
  muon_->update(u, *units_[u], moments.exp_avg,
                {learning_rate, options_.weight_decay, factors.skip});
}

bool AdamW::is_muons(std::size_t u, std::size_t i) const { return muon_ && muon_->updates(u, i); }

std::vector<NamedSlice> AdamW::slices_of(std::size_t u, const at::Tensor& buffer) const {
  const UnitStorage& storage = units_.at(u)->storage();
  std::vector<NamedSlice> slices;
  for (std::size_t i = 0; i < storage.layout().specs().size(); ++i) {
    if (!is_muons(u, i)) {
      std::ranges::move(storage.slices_of(buffer, i), std::back_inserter(slices));
    }
  }
  return slices;
}

std::vector<NamedSlice> AdamW::second_slices(std::size_t u, const at::Tensor& exp_avg_sq) const {
  std::vector<NamedSlice> slices = slices_of(u, units_[u]->flat().detach());
  int64_t begin = 0;
  for (NamedSlice& slice : slices) {
    const int64_t elements = slice.values.numel();
    slice.values = exp_avg_sq.narrow(0, begin, elements);
    begin += elements;
  }
  return slices;
}

std::vector<int64_t> AdamW::second_elements() const {
  std::vector<int64_t> all;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    int64_t& elements = all.emplace_back(0);
    for (const NamedSlice& slice : slices_of(u, units_[u]->flat().detach())) {
      elements += slice.values.numel();
    }
  }
  return all;
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
  add("exp_avg_sq.", second_slices(unit, stored.exp_avg_sq));
  return state;
}

}  // namespace ringside::engine
