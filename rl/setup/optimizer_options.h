// Optimizer options from the configuration.
#pragma once

#include "engine/optim/adamw.h"
#include "rl/config/config.h"

namespace ringside::rl {

// optimizer.beta1, beta2, eps and weight_decay.
engine::AdamWOptions adamw_options(const OptimizerConfig& config);

}  // namespace ringside::rl
