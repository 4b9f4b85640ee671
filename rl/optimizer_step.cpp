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
  TORCH_CHECK(std::isfinite(grad_norm), "the gradient norm is ", grad_norm,
              "; the weights were left as they were before this optimizer step");
  optimizer.step(learning_rate);
  return grad_norm;
}

}  // namespace ringside::rl
