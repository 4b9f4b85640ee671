// A weight for use in plain tensor operators.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/params/weight.h"

namespace ringside::engine {

// The weight's value, in its own dtype or in `dtype`. Its gradient goes to the leaf, in the leaf's
// dtype. For weights without adapters that are not quantised.
at::Tensor leaf_value(const Weight& weight);
at::Tensor leaf_value(const Weight& weight, at::ScalarType dtype);

}  // namespace ringside::engine
