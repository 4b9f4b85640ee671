#include "engine/models/weight_export.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/models/acting_values.h"
#include "sp/mesh/control.h"
#include "sp/mesh/rank_work.h"

namespace ringside::engine {

namespace {

constexpr const char* kTag = "weights of stages";

// The dtype in which values of a unit travel along a line: no narrower than any that they are
// stored in.
at::ScalarType travelling_dtype(const UnitLayout& layout, const ComputeContext& context) {
  return widened_dtype(layout.specs().front(), context.master);
}

// The adapters of a decoder, or of a stage of one. Tensor-parallel ranks may have put projections
// together in another way.
ExportPlan plan_of_adapters(const Decoder& decoder) {
  const ParamUnit& unit = decoder.adapters()->unit();
  std::vector<ParamSpec> specs =
      Adapters::factors(decoder.config(), decoder.stage(), decoder.adapters()->options());
  std::erase_if(specs, [&](const ParamSpec& spec) {
    return std::ranges::find(unit.specs(), spec) == unit.specs().end();
  });
  return {UnitLayout(unit.name(), std::move(specs)), {&unit}};
}

}  // namespace

WeightView::WeightView(const Decoder& decoder) : WeightView(std::vector{&decoder}) {}

WeightView::WeightView(const std::vector<const Decoder*>& stages) : model_(stages.front()) {
  if (pipeline() != nullptr) {
    add_line(stages, /*acting=*/true);
    return;
  }
  for (ExportPlan& plan : model_->parameters().export_plans()) {
    units_.push_back({std::move(plan), model_});
  }
}

WeightView::WeightView(const ValueModel& model) : model_(&model.trunk()) {
  if (pipeline() != nullptr) {
    add_line(model.stages(), /*acting=*/false);
  } else {
    for (ExportPlan& plan : model_->parameters().export_plans()) {
      units_.push_back({std::move(plan)});
    }
  }
  const int64_t owner =
      pipeline() != nullptr ? pipeline()->shape.rank_of(pipeline()->shape.stages() - 1) : 0;
  ExportPlan head{UnitLayout("value_head", ValueModel::head_specs(config(), model.head_bias())),
                  {}};
  if (model.scores()) {
    head.units.push_back(&model.head());
  }
  units_.push_back({std::move(head), nullptr, owner});
}

void WeightView::add_line(const std::vector<const Decoder*>& own, bool acting) {
  const sp::PipelineShape& shape = pipeline()->shape;
  std::vector<Stage> stages = pipeline_stages(config(), pipeline());
  std::vector<Unit> corrections;  // behind everything else, as in a whole model
  auto here = own.begin();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const int64_t owner = shape.rank_of(static_cast<int64_t>(s));
    const bool is_here = owner == pipeline()->line->rank();
    const Decoder* decoder = is_here ? *here++ : nullptr;
    // A value model's last stage has no matrix of the vocabulary.
    stages[s].vocabulary = acting || stages[s].embeds;
    std::vector<ExportPlan> plans =
        is_here ? decoder->parameters().export_plans() : std::vector<ExportPlan>();
    std::size_t next = 0;
    for (UnitSpecs& specs : unit_specs(config(), stages[s])) {
      ExportPlan plan = is_here ? std::move(plans.at(next++))
                                : ExportPlan{UnitLayout(specs.name, std::move(specs.specs)), {}};
      // The copy of an embedding is exported by the stage that embeds.
      if (specs.role != UnitRole::kHead || !copies_embedding(config(), stages[s])) {
        (specs.role == UnitRole::kCorrections ? corrections : units_)
            .push_back({std::move(plan), acting ? decoder : nullptr, owner});
      }
    }
  }
  std::ranges::move(corrections, std::back_inserter(units_));
}

WeightView WeightView::of_changing(const std::vector<const Decoder*>& stages) {
  WeightView view(stages);
  std::erase_if(view.units_, [&](const Unit& unit) {
    return unit.is_here() && stages.front()->parameters().is_constant_part(*unit.plan.units[0]);
  });
  return view;
}

WeightView WeightView::adapters_of(const Decoder& decoder) {
  return adapters_of(std::vector{&decoder});
}

WeightView WeightView::adapters_of(const std::vector<const Decoder*>& stages) {
  WeightView view(stages.front());
  TORCH_CHECK(view.adapters() != nullptr, "weights: the model has no adapters to export");
  const Pipeline* pipeline = view.pipeline();
  if (pipeline == nullptr) {
    view.units_.push_back({plan_of_adapters(*stages.front())});
    return view;
  }
  const std::vector<Stage> all = pipeline_stages(view.config(), pipeline);
  auto here = stages.begin();
  for (std::size_t s = 0; s < all.size(); ++s) {
    const int64_t owner = pipeline->shape.rank_of(static_cast<int64_t>(s));
    const bool is_here = owner == pipeline->line->rank();
    ExportPlan plan =
        is_here ? plan_of_adapters(**here++)
                : ExportPlan{UnitLayout("adapters", Adapters::factors(view.config(), all[s],
                                                                      view.adapters()->options())),
                             {}};
    if (!plan.layout.specs().empty()) {
      view.units_.push_back({std::move(plan), nullptr, owner});
    }
  }
  return view;
}

WeightView WeightView::adapters_of(const std::vector<PrefixedStages>& models) {
  WeightView view(models.front().stages.front());
  for (const auto& [prefix, stages] : models) {
    for (Unit& unit : adapters_of(stages).units_) {
      unit.prefix = prefix;
      view.units_.push_back(std::move(unit));
    }
  }
  return view;
}

std::vector<ParamSpec> WeightView::specs() const {
  std::vector<ParamSpec> specs;
  for (const Unit& unit : units_) {
    for (ParamSpec spec : unit.plan.layout.specs()) {
      spec.name.insert(0, unit.prefix);
      specs.push_back(std::move(spec));
    }
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
  return std::ranges::any_of(units_, [](const Unit& unit) {
    return !unit.is_here() || std::ranges::any_of(unit.plan.units, [](const ParamUnit* one) {
      return !one->storage().is_whole();
    });
  });
}

at::Tensor UnitExport::gather(const WeightView::Unit& unit) {
  is_broken_ = true;
  at::Tensor values;
  if (unit.is_here()) {
    values =
        unit.stage != nullptr ? gather_values(*unit.stage, unit.plan) : gathered_values(unit.plan);
  }
  const Pipeline* pipeline = weights_.pipeline();
  if (pipeline != nullptr && wanted_in_line_) {
    const ComputeContext& context = weights_.context();
    const at::ScalarType dtype = travelling_dtype(unit.plan.layout, context);
    if (unit.is_here()) {
      values = acting(unit, values).to(context.device, dtype).contiguous();
    } else {
      values = at::empty({unit.plan.layout.numel()},
                         at::TensorOptions().dtype(dtype).device(context.device));
    }
    pipeline->line->broadcast(values, unit.owner, kTag);
  }
  is_broken_ = false;
  return values;
}

at::Tensor UnitExport::acting(const WeightView::Unit& unit, const at::Tensor& values) const {
  return unit.stage != nullptr ? acting_values(*unit.stage, unit.plan, values) : values;
}

std::optional<ExportedUnit> UnitExport::next() {
  if (is_broken_ || next_ == weights_.units_.size()) {
    return std::nullopt;
  }
  const WeightView::Unit& unit = weights_.units_[next_++];
  at::Tensor values = gather(unit);
  return ExportedUnit(unit.plan,
                      weights_.pipeline() == nullptr ? acting(unit, values) : std::move(values),
                      unit.prefix);
}

void UnitExport::skip_rest() {
  while (!is_broken_ && next_ < weights_.units_.size()) {
    gather(weights_.units_[next_++]);
  }
}

void export_weights(const WeightView& weights, const WeightSink& sink, sp::Communicator& world,
                    std::chrono::milliseconds round) {
  const bool gathers = weights.is_sharded();
  if (gathers && sp::max_scalars({sink ? 1.0 : 0.0}, world).front() == 0.0) {
    return;
  }
  bool wanted_in_line = true;
  if (const Pipeline* pipeline = weights.pipeline()) {
    at::Tensor wanted =
        at::full({1}, sink ? 1.0 : 0.0, at::TensorOptions().device(weights.context().device));
    pipeline->line->all_reduce_max(wanted, kTag);
    wanted_in_line = wanted.item<float>() > 0.0F;
  }
  const auto work = [&] {
    const at::NoGradGuard no_grad;
    UnitExport units(weights);
    units.wanted_in_line_ = wanted_in_line;
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

namespace {

// Fills a unit with the values of the next ones of the export, which may be several: those of the
// stages of a pipeline.
void fill_from(UnitExport& units, ParamUnit& unit) {
  for (int64_t filled = 0; filled < unit.flat().numel();) {
    const at::Tensor values = units.next().value().values();
    unit.flat().detach().narrow(0, filled, values.numel()).copy_(values);
    filled += values.numel();
  }
}

}  // namespace

std::unique_ptr<Decoder> whole_copy(UnitExport& units) {
  const auto copy = [&](ParamUnit& unit) { fill_from(units, unit); };
  return std::make_unique<Decoder>(units.weights().config(), units.weights().stage(),
                                   whole_context(units.weights().context()),
                                   WeightStorage{.frozen = true, .projections = {}}, copy);
}

std::unique_ptr<Adapters> whole_adapters(UnitExport& units) {
  const WeightView& view = units.weights();
  auto whole = std::make_unique<Adapters>(view.config(), view.stage(), view.adapters()->options(),
                                          whole_context(view.context()));
  fill_from(units, whole->unit());
  return whole;
}

}  // namespace ringside::engine
