#include "engine/optim/divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
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
  std::vector<sp::Communicator*> groups;
  for (const ParamUnit* unit : units) {
    // A mark for every unit: a unit that is empty here may not be empty on the other ranks.
    if (unit->flat().numel() == 0) {
      marks.push_back(
          at::zeros({}, unit->flat().options().device(unit->storage().context().device)));
    } else {
      const auto [low, high] = at::aminmax(unit->flat());
      // NaN for a NaN or an infinity, else 0.
      marks.push_back((low * 0 + high * 0).to(unit->storage().context().device));
    }
    for (sp::Communicator* group : unit->storage().spread()) {
      if (std::ranges::find(groups, group) == groups.end()) {
        groups.push_back(group);
      }
    }
  }
  at::Tensor of_units = at::stack(marks).to(at::kDouble);
  for (sp::Communicator* group : groups) {
    group->all_reduce_sum(of_units, "finite marks");
  }
  return of_units;
}

std::string first_non_finite(std::span<ParamUnit* const> units) {
  for (const ParamUnit* unit : units) {
    if (unit->flat().numel() == 0 || is_finite(unit->flat())) {
      continue;
    }
    for (const NamedSlice& slice : unit->storage().slices()) {
      if (!is_finite(slice.values)) {
        return slice.name;
      }
    }
  }
  return "";
}

}  // namespace ringside::engine
