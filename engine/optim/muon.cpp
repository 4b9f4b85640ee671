#include "engine/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ringside::engine {
namespace {

// Keller Jordan's coefficients of the quintic, and what divides a zero matrix.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kEps = 1e-7;

constexpr const char* kTag = "directions";

// `next`, or `old` in a step that is skipped.
void replace(const at::Tensor& old, const at::Tensor& next, const at::Tensor& skip) {
  old.copy_(skip.defined() ? at::where(skip.to(at::kBool), old, next) : next);
}

// Outputs and inputs of each matrix of a parameter.
std::pair<int64_t, int64_t> sides(const std::vector<int64_t>& shape) {
  return shape.size() == 3 ? std::pair{shape[2], shape[1]} : std::pair{shape[0], shape[1]};
}

}  // namespace

at::ScalarType direction_dtype(const ComputeContext& context) {
  return context.compute == at::kHalf ? at::kFloat : context.compute;
}

at::Tensor orthogonalised(const at::Tensor& x_BRC, int64_t steps) {
  TORCH_CHECK(x_BRC.dim() == 3 && steps > 0, "orthogonalised: shape ", x_BRC.sizes(), " and ",
              steps, " steps; expected three dims and at least one step");
  const bool is_tall = x_BRC.size(1) > x_BRC.size(2);
  at::Tensor x = is_tall ? x_BRC.mT() : x_BRC;
  x = x / at::linalg_vector_norm(x, 2, at::IntArrayRef{1, 2}, /*keepdim=*/true).clamp_min(kEps);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor gram = at::bmm(x, x.mT());
    const at::Tensor polynomial = at::baddbmm(gram, gram, gram, kB, kC);
    x = at::baddbmm(x, polynomial, x, kA);
  }
  return is_tall ? x.mT() : x;
}

double direction_factor(DirectionScale scale, int64_t outputs, int64_t inputs) {
  const auto rows = static_cast<double>(outputs), columns = static_cast<double>(inputs);
  return scale == DirectionScale::kSpectral ? std::sqrt(std::max(1.0, rows / columns))
                                            : 0.2 * std::sqrt(std::max(rows, columns));
}

Muon::Muon(MuonOptions options, MuonMatrices matrices)
    : options_(options), matrices_(std::move(matrices)) {
  TORCH_CHECK(options.momentum >= 0 && options.momentum < 1,
              "Muon: momentum must be in [0, 1), got ", options.momentum);
  TORCH_CHECK(options.newton_schulz_steps > 0 && options.newton_schulz_steps < 100,
              "Muon: expected 1 to 99 Newton-Schulz steps, got ", options.newton_schulz_steps);
}

bool Muon::updates(std::size_t u, std::size_t i) const {
  return std::ranges::binary_search(matrices_.of_unit.at(u), i);
}

at::Tensor Muon::gathered_directions(const ParamUnit& unit, const at::Tensor& exp_avg,
                                     const std::vector<std::size_t>& params,
                                     const at::Tensor& skip) const {
  const UnitStorage& storage = unit.storage();
  const at::Tensor grad = storage.grad();
  at::Tensor directions =
      at::zeros(exp_avg.sizes(),
                exp_avg.options().dtype(direction_dtype(storage.context())).pinned_memory(false));
  for (const std::size_t i : params) {
    const auto moments = storage.slices_of(exp_avg, i), grads = storage.slices_of(grad, i),
               into = storage.slices_of(directions, i);
    for (std::size_t s = 0; s < moments.size(); ++s) {
      const at::Tensor &m = moments[s].values, &g = grads[s].values;
      replace(m, m.lerp(g, 1.0 - options_.momentum), skip);
      into[s].values.copy_(options_.nesterov ? g.lerp(m, options_.momentum) : m);
    }
  }
  directions = storage.is_cut() ? unit.gathered().gather()->gather_once(directions)
                                : directions.to(storage.context().device);
  if (storage.layout().num_parts() == 1) {
    return directions;
  }
  const UnitPart& part = storage.part();
  return storage.layout().whole_of(part.ranks->all_gather_rows(directions, part.sizes, kTag));
}

std::vector<Muon::Matrix> Muon::matrices_of(const UnitStorage& storage, std::size_t i) const {
  const std::vector<int64_t>& shape = storage.layout().specs()[i].shape;
  const int64_t each = shape[shape.size() - 2] * shape.back();
  const std::vector<NamedSlice> slices = storage.slices_of(storage.flat().detach(), i);
  std::vector<Matrix> matrices;
  for (int64_t first = 0; first < storage.layout().range(i).numel; first += each) {
    if (std::ranges::any_of(slices, [&](const NamedSlice& slice) {
          return slice.columns || (slice.begin < first + each && first < slice.end());
        })) {
      matrices.push_back({i, first, shape[shape.size() - 2], shape.back()});
    }
  }
  return matrices;
}

at::Tensor Muon::own_directions(const UnitStorage& storage, const at::Tensor& gathered,
                                std::vector<Matrix> share) const {
  const UnitLayout& layout = storage.layout();
  const at::Tensor directions = at::zeros(storage.flat().sizes(), gathered.options());
  const int64_t begin = layout.num_parts() > 1 ? 0 : storage.part().begin;
  while (!share.empty()) {
    // The next ones of the same shape.
    const int64_t rows = share.front().rows, columns = share.front().columns;
    const int64_t most = std::max<int64_t>(1, kMuonBatchElements / (rows * columns));
    const auto rest = std::stable_partition(share.begin(), share.end(), [&](const Matrix& one) {
      return one.rows == rows && one.columns == columns;
    });
    const std::vector<Matrix> batch(share.begin(), std::min(rest, share.begin() + most));
    share.erase(share.begin(), share.begin() + std::ssize(batch));
    std::vector<at::Tensor> values;
    for (const Matrix& one : batch) {
      const int64_t place = layout.range(one.param).offset - begin + one.first;
      values.push_back(gathered.narrow(0, place, rows * columns).view({rows, columns}));
    }
    const at::Tensor made =
        orthogonalised(at::stack(values), options_.newton_schulz_steps).contiguous();
    for (std::size_t k = 0; k < batch.size(); ++k) {
      const ParamSpec& spec = layout.specs()[batch[k].param];
      const NamedSlice whole{spec.name, spec.shape, batch[k].first,
                             made[static_cast<int64_t>(k)].view({-1})};
      for (const NamedSlice& slice : storage.slices_of(directions, batch[k].param)) {
        copy_shared(whole, slice);
      }
    }
  }
  return directions;
}

void Muon::update(std::size_t u, const ParamUnit& unit, const at::Tensor& exp_avg,
                  const MuonStep& step) const {
  const at::NoGradGuard no_grad;
  const UnitStorage& storage = unit.storage();
  if (matrices_.of_unit.at(u).empty()) {
    return;
  }
  const std::vector<std::size_t>& params = matrices_.of_unit[u];
  const at::Tensor gathered = gathered_directions(unit, exp_avg, params, step.skip);
  sp::Communicator* holders = storage.holders();
  holders = holders != nullptr ? holders : matrices_.holders.get();
  const std::size_t ranks = holders != nullptr ? holders->size() : 1;
  // Begins at another rank in each unit, so that those after the last matrix have work too.
  std::size_t turn = u;
  std::vector<Matrix> share;
  for (const std::size_t i : params) {
    for (const Matrix& matrix : matrices_of(storage, i)) {
      if (ranks == 1 || turn++ % ranks == static_cast<std::size_t>(holders->rank())) {
        share.push_back(matrix);
      }
    }
  }
  at::Tensor directions = own_directions(storage, gathered, std::move(share));
  if (ranks > 1) {
    holders->all_reduce_sum(directions, kTag);
  }
  directions = directions.to(storage.flat().device());
  for (const std::size_t i : params) {
    const auto [outputs, inputs] = sides(storage.layout().specs()[i].shape);
    const double rate = step.learning_rate * direction_factor(options_.scale, outputs, inputs);
    const auto into = storage.slices_of(storage.flat().detach(), i),
               of = storage.slices_of(directions, i);
    for (std::size_t s = 0; s < into.size(); ++s) {
      const at::Tensor& p = into[s].values;
      replace(p,
              (p * (1.0 - step.learning_rate * step.weight_decay))
                  .sub_(of[s].values.to(p.scalar_type()), rate),
              step.skip);
    }
  }
}

}  // namespace ringside::engine
