// The frame of an optimizer step around any forward and backward: gradients dropped before, then summed over the world,
// clipped, checked and applied. Policy and value model share it.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "engine/optim/adamw.h"
#include "engine/parallel/param_unit.h"
#include "rl/config/config.h"
#include "sp/comm/communicator.h"

namespace ringside::rl {

// optimizer.beta1, beta2, eps and weight_decay.
engine::AdamWOptions adamw_options(const OptimizerConfig& config);

// Training cannot go on: a loss, a gradient or a weight is NaN or infinite. Thrown on every rank
// alike.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The name of the first parameter that holds a NaN or an infinity, "" when all are finite. Local.
std::string first_non_finite(std::span<engine::ParamUnit* const> units);

// Drops the gradients of all units. Local.
void zero_gradients(std::span<engine::ParamUnit* const> units);

// Sums the units' gradients over the world, clips them to max_grad_norm (0 = no clipping) and takes
// one step of `optimizer`, which must be of the same units, at learning_rate. Returns the norm of
// the summed gradient before the clip, the same on every rank. Collective over the world. Throws
// Diverged on every rank: before the weights change when the norm is not finite, and after it when
// a weight is not.
double apply_gradients(std::span<engine::ParamUnit* const> units, engine::AdamW& optimizer, double learning_rate,
                       double max_grad_norm, sp::Communicator& world);

}  // namespace ringside::rl
