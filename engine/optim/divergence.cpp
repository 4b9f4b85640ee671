#include "engine/optim/divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace ringside::engine {
namespace {

bool is_finite(const at::Tensor& values) {
  const auto [low, high] = at::aminmax(values.detach());
  return std::isfinite(low.item<double>()) &&
         std::isfinite(high.item<double>());  // one NaN makes both NaN
}

}  // namespace

at::Tensor finite_marks(std::span<ParamUnit* const> units) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> marks;
  for (const ParamUnit* unit : units) {
    if (unit->flat().numel() > 0) {
      const auto [low, high] = at::aminmax(unit->flat());
      marks.push_back(low * 0 + high * 0);  // NaN for a NaN or an infinity, else 0
    }
  }
  return at::stack(marks).to(at::kDouble);
}

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
