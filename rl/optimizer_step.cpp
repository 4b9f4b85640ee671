#include "rl/optimizer_step.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/optim/grad_clip.h"
#include "sp/grad_sync.h"

namespace ringside::rl {

engine::AdamWOptions adamw_options(const OptimizerConfig& config) {
  engine::AdamWOptions options;
  options.beta1 = config.beta1;
  options.beta2 = config.beta2;
  options.eps = config.eps;
  options.weight_decay = config.weight_decay;
  return options;
}

std::string first_non_finite(std::span<engine::ParamUnit* const> units) {
  const auto finite = [](const at::Tensor& values) {
    const auto [low, high] = at::aminmax(values.detach());
    return std::isfinite(low.item<double>()) &&
           std::isfinite(high.item<double>());  // both are NaN where one value is
  };
  for (const engine::ParamUnit* unit : units) {
    if (unit->flat().numel() == 0 || finite(unit->flat())) {
      continue;
    }
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      if (!finite(unit->view(i))) {
        return unit->specs()[i].name;
      }
    }
  }
  return "";
}

void zero_gradients(std::span<engine::ParamUnit* const> units) {
  for (engine::ParamUnit* unit : units) {
    unit->zero_grad();
  }
}

double apply_gradients(std::span<engine::ParamUnit* const> units, engine::AdamW& optimizer, double learning_rate,
                       double max_grad_norm, sp::Communicator& world) {
  std::vector<at::Tensor> gradients;
  for (engine::ParamUnit* unit : units) {
    gradients.push_back(unit->grad());
  }
  sp::sum_gradients(gradients, world);
  const double grad_norm = engine::clip_grad_norm(
      units, max_grad_norm > 0.0 ? max_grad_norm : std::numeric_limits<double>::infinity());
  if (!std::isfinite(grad_norm)) {
    throw Diverged("the gradient norm is " + std::to_string(grad_norm) +
                   "; the weights were left as they were before this optimizer step");
  }
  optimizer.step(learning_rate);
  if (const std::string name = first_non_finite(units); !name.empty()) {
    throw Diverged("the optimizer step at learning rate " + std::to_string(learning_rate) +
                   " made weights of " + name + " not finite");
  }
  return grad_norm;
}

}  // namespace ringside::rl
