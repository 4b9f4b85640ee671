// Detection of training that has diverged.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "engine/params/param_unit.h"

namespace ringside::engine {

// Training cannot go on: a loss, a gradient or a weight is NaN or infinite. Thrown on every rank
// alike.
class Diverged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The name of the first parameter that holds a NaN or an infinity, "" when all are finite. Local.
std::string first_non_finite(std::span<ParamUnit* const> units);

}  // namespace ringside::engine
