// Global gradient norm, and the scale that clips by it, both on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// Sum of the squares of each unit's gradient, in fp64. The gradients must already be summed over
// the ranks; every rank then gets the same numbers. No host sync, unless gradients are in host
// memory. Shapes: returns fp64 [units], on the units' device. Collective over: the groups that the
// units are spread over. Throws: c10::Error without units.
at::Tensor squares_of_units(std::span<ParamUnit* const> units);

// 2-norm of all gradients together, of the squares of all units of a model. They are added in the
// order of the units, so that the bits depend neither on stages nor on how units are spread.
// Shapes: fp64 [units] -> fp64 [], on the device.
at::Tensor norm_of_squares(const at::Tensor& squares);

// Both: of all units of a model that this rank has.
// Shapes, collective over, throws: as above.
at::Tensor global_grad_norm(std::span<ParamUnit* const> units);

// max_norm / (norm + 1e-6) where that is below 1, else 1; not finite when the norm is not. max_norm
// = 0 means no clipping and gives 1.
// Shapes: fp64 [], on the norm's device.
// Throws: c10::Error for a negative max_norm.
// Source: torch.nn.utils.clip_grad_norm_.
at::Tensor clip_scale(const at::Tensor& norm, double max_norm);

}  // namespace ringside::engine
