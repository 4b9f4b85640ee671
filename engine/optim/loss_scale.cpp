#include "engine/optim/loss_scale.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ringside::engine {

LossScale::LossScale(c10::Device device, const LossScaleOptions& options) : options_(options) {
  TORCH_CHECK(options.initial > 0 && options.growth > 1 && options.backoff > 0 &&
                  options.backoff < 1 && options.growth_interval > 0,
              "loss scale: initial ", options.initial, ", growth ", options.growth, ", backoff ",
              options.backoff, ", growth interval ", options.growth_interval,
              "; expected above 0, above 1, between 0 and 1, above 0");
  scale_ = at::full({}, options.initial, at::dtype(at::kFloat).device(device));
  finite_steps_ = at::zeros({}, at::dtype(at::kInt).device(device));
}

void LossScale::update(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, finite_steps_, found_inf, options_.growth, options_.backoff,
                         options_.growth_interval);
}

std::vector<std::pair<std::string, at::Tensor>> LossScale::named_state() const {
  return {{"loss_scale", scale_}, {"loss_scale_finite_steps", finite_steps_}};
}

}  // namespace ringside::engine
