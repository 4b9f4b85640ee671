#include "rl/setup/optimizer_options.h"

namespace ringside::rl {

engine::AdamWOptions adamw_options(const OptimizerConfig& config) {
  engine::AdamWOptions options;
  options.beta1 = config.beta1;
  options.beta2 = config.beta2;
  options.eps = config.eps;
  options.weight_decay = config.weight_decay;
  options.decays_vectors = config.weight_decay_of == WeightDecayOf::kAll;
  return options;
}

}  // namespace ringside::rl
