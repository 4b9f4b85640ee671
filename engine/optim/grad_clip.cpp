#include "engine/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

namespace ringside::engine {
namespace {

// Added in the order of the ranks. An all-reduce adds in an order that depends on a number's place,
// so a unit's sum would depend on how many units this rank has.
at::Tensor sum_over_ranks(const at::Tensor& of_rank, sp::Communicator& ranks) {
  at::Tensor sum = at::zeros_like(of_rank);
  for (const at::Tensor& row : ranks.all_gather(of_rank, "gradient norm").unbind(0)) {
    sum.add_(row);
  }
  return sum;
}

}  // namespace

at::Tensor squares_of_units(std::span<ParamUnit* const> units) {
  TORCH_CHECK(!units.empty(), "squares_of_units of no parameter unit");
  const at::NoGradGuard no_grad;
  // Units that are spread over the same groups.
  struct Spread {
    std::vector<sp::Communicator*> groups;
    std::vector<at::Tensor> squares;
    std::vector<int64_t> places;
  };
  std::vector<Spread> parts;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const UnitStorage& storage = units[u]->storage();
    const at::Tensor norm = at::linalg_vector_norm(units[u]->grad(), 2, at::OptionalIntArrayRef(),
                                                   /*keepdim=*/false, at::kDouble)
                                .to(storage.context().device);
    const auto groups = storage.spread();
    auto part = std::ranges::find(parts, groups, &Spread::groups);
    if (part == parts.end()) {
      part = parts.insert(part, {groups, {}, {}});
    }
    part->squares.push_back(norm * norm);
    part->places.push_back(static_cast<int64_t>(u));
  }
  std::vector<at::Tensor> squares(units.size());
  for (Spread& part : parts) {
    at::Tensor sums = at::stack(part.squares);
    for (sp::Communicator* group : part.groups) {
      sums = sum_over_ranks(sums, *group);
    }
    for (std::size_t i = 0; i < part.places.size(); ++i) {
      squares[part.places[i]] = sums[static_cast<int64_t>(i)];
    }
  }
  return at::stack(squares);
}

at::Tensor norm_of_squares(const at::Tensor& squares) {
  const at::NoGradGuard no_grad;
  at::Tensor sum = at::zeros({}, squares.options());
  for (const at::Tensor& square : squares.unbind(0)) {
    sum = sum + square;
  }
  return sum.sqrt();
}

at::Tensor global_grad_norm(std::span<ParamUnit* const> units) {
  return norm_of_squares(squares_of_units(units));
}

at::Tensor clip_scale(const at::Tensor& norm, double max_norm) {
  TORCH_CHECK(max_norm >= 0, "clip_scale: max_norm must not be negative, got ", max_norm);
  if (max_norm == 0) {
    return at::ones_like(norm);
  }
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

}  // namespace ringside::engine
