#include "engine/optim/divergence.h"

#include <ATen/ATen.h>

#include <cmath>
#include <tuple>

namespace ringside::engine {
namespace {

bool is_finite(const at::Tensor& values) {
  const auto [low, high] = at::aminmax(values.detach());
  return std::isfinite(low.item<double>()) &&
         std::isfinite(high.item<double>());  // one NaN makes both NaN
}

}  // namespace

std::string first_non_finite(std::span<ParamUnit* const> units) {
  for (const ParamUnit* unit : units) {
    if (unit->flat().numel() == 0 || is_finite(unit->flat())) {
      continue;
    }
    for (std::size_t i = 0; i < unit->specs().size(); ++i) {
      if (!is_finite(unit->view(i))) {
        return unit->specs()[i].name;
      }
    }
  }
  return "";
}

}  // namespace ringside::engine
