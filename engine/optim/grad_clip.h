// The global gradient norm and the clip by it.
#pragma once

#include <span>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// The 2-norm of all gradients together, summed in fp64 unit by unit. Local: the gradients must
// already be summed over the ranks, and every rank then gets the same number.
double global_grad_norm(std::span<ParamUnit* const> units);

// Scales all gradients by max_norm / (norm + 1e-6) when that is below 1, as
// torch.nn.utils.clip_grad_norm_ does, and returns the norm before. Gradients whose norm is not
// finite are left alone: the caller sees it in the result and must not step. Throws c10::Error
// unless max_norm > 0.
double clip_grad_norm(std::span<ParamUnit* const> units, double max_norm);

}  // namespace ringside::engine
