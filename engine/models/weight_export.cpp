#include "engine/models/weight_export.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "sp/mesh/control.h"
#include "sp/mesh/rank_work.h"

namespace ringside::engine {

WeightView::WeightView(const Decoder& decoder)
    : model_(&decoder), units_(decoder.units()), acting_(true) {}

WeightView::WeightView(const ValueModel& model) : model_(&model.trunk()), units_(model.units()) {}

WeightView WeightView::adapters_of(const Decoder& decoder) {
  TORCH_CHECK(decoder.adapters() != nullptr, "weights: the model has no adapters to export");
  WeightView adapters(&decoder);
  adapters.units_ = {&decoder.adapters()->unit()};
  return adapters;
}

std::vector<ParamSpec> WeightView::specs() const {
  std::vector<ParamSpec> specs;
  for (const ParamUnit* unit : units_) {
    specs.insert(specs.end(), unit->specs().begin(), unit->specs().end());
  }
  return specs;
}

std::size_t WeightView::bytes(at::ScalarType dtype) const {
  std::size_t bytes = 0;
  for (const ParamSpec& spec : specs()) {
    bytes += static_cast<std::size_t>(spec.numel()) * at::elementSize(widened_dtype(spec, dtype));
  }
  return bytes;
}

bool WeightView::is_sharded() const {
  return std::ranges::any_of(units_,
                             [](const ParamUnit* unit) { return !unit->storage().is_whole(); });
}

at::Tensor UnitExport::gather(std::size_t unit) {
  is_broken_ = true;
  at::Tensor values = weights_.units_[unit]->gathered().gather_flat();
  is_broken_ = false;
  return values;
}

std::optional<ExportedUnit> UnitExport::next() {
  if (is_broken_ || next_ == weights_.units_.size()) {
    return std::nullopt;
  }
  const std::size_t unit = next_++;
  at::Tensor values = gather(unit);
  if (weights_.acting_) {
    values = weights_.model_->effective_values(unit, values);
  }
  return ExportedUnit(*weights_.units_[unit], std::move(values));
}

void UnitExport::skip_rest() {
  while (!is_broken_ && next_ < weights_.units_.size()) {
    gather(next_++);
  }
}

void export_weights(const WeightView& weights, const WeightSink& sink, sp::Communicator& world,
                    std::chrono::milliseconds round) {
  const bool gathers = weights.is_sharded();
  if (gathers && sp::max_scalars({sink ? 1.0 : 0.0}, world).front() == 0.0) {
    return;
  }
  const auto work = [&] {
    const at::NoGradGuard no_grad;
    UnitExport units(weights);
    std::exception_ptr failure;
    if (sink) {
      try {
        sink(units);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (gathers) {
      units.skip_rest();
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
  };
  sp::run_rank_work(world, round, sink || gathers ? work : std::function<void()>());
}

void export_weights(const WeightView& weights, const WeightSink& sink) {
  TORCH_CHECK(!weights.is_sharded(),
              "weights: the model is sharded; expected one that is whole on this rank");
  const at::NoGradGuard no_grad;
  UnitExport units(weights);
  sink(units);
}

std::unique_ptr<Decoder> whole_copy(UnitExport& units) {
  const auto copy = [&](ParamUnit& unit) { unit.flat().copy_(units.next().value().values()); };
  return std::make_unique<Decoder>(units.weights().config(), units.weights().stage(),
                                   whole_context(units.weights().context()),
                                   WeightStorage{.frozen = true, .projections = {}}, copy);
}

}  // namespace ringside::engine
