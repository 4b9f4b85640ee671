// Optimizer options from the configuration.
#pragma once

#include "engine/optim/adamw.h"
#include "rl/config/config.h"

namespace ringside::rl {

// optimizer.beta1, beta2, eps, weight_decay and weight_decay_of; with optimizer.kind muon
// optimizer.muon.*, too.
engine::AdamWOptions adamw_options(const OptimizerConfig& config);

}  // namespace ringside::rl
