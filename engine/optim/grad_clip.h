// Global gradient norm, and clipping by it.
#pragma once

#include <span>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// 2-norm of all gradients together, summed in fp64 unit by unit. Not collective: the gradients must
// already be summed over the ranks; every rank then gets the same number.
double global_grad_norm(std::span<ParamUnit* const> units);

// Scales all gradients by max_norm / (norm + 1e-6) when that is below 1, and returns the norm
// before. Does not scale when the norm is not finite: the caller must check the result and must not
// step.
// Throws: c10::Error unless max_norm > 0.
// Source: torch.nn.utils.clip_grad_norm_.
double clip_grad_norm(std::span<ParamUnit* const> units, double max_norm);

}  // namespace ringside::engine
