#include "rl/setup/optimizer_options.h"

namespace ringside::rl {

engine::AdamWOptions adamw_options(const OptimizerConfig& config) {
  engine::AdamWOptions options;
  options.beta1 = config.beta1;
  options.beta2 = config.beta2;
  options.eps = config.eps;
  options.weight_decay = config.weight_decay;
  return options;
}

}  // namespace ringside::rl
