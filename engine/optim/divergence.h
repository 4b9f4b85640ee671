// Detection of training that has diverged.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <stdexcept>
#include <string>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// A loss, a gradient or a weight is NaN or infinite, so training cannot continue. Thrown on every
// rank.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Per unit 0 if all its weights are finite, on all ranks, else NaN; computed on the device without
// a host sync.
// Shapes: returns fp64 [units].
// Collective over: the groups that the units are spread over.
at::Tensor finite_marks(std::span<ParamUnit* const> units);

// Name of the first parameter that holds a NaN or an infinity on this rank; "" when all are finite.
// Not collective.
// Blocks: until the device has checked each unit.
std::string first_non_finite(std::span<ParamUnit* const> units);

}  // namespace ringside::engine
