#include "engine/models/decoder_units.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "engine/layers/decoder_layer.h"
#include "engine/params/sharding.h"
#include "sp/layout/range.h"

namespace ringside::engine {
namespace {

std::string correction_name(const ModelConfig& config, int64_t layer) {
  return layer_prefix(config, layer) + experts_module(config.experts) +
         (config.experts.block_sparse_names ? "." : ".gate.") + "e_score_correction_bias";
}

// Of a stage; the one that predicts a further token is the last.
std::vector<DecoderLayer> layers_of(const ModelConfig& config, const Stage& stage,
                                    const TensorPlace& tensor) {
  const bool further = stage.predicts_further(config);
  std::vector<DecoderLayer> layers;
  layers.reserve(stage.layers.size() + (further ? 1 : 0));
  for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
    layers.emplace_back(config, i, tensor);
  }
  if (further) {
    layers.emplace_back(config, further_layer(config), tensor);
  }
  return layers;
}

// Throws: c10::Error for a layer that predicts a further token where it is not trained.
void check_further(const ModelConfig& config, const Stage& stage, const ComputeContext& context,
                   const WeightStorage& storage) {
  if (!stage.predicts_further(config)) {
    return;
  }
  TORCH_CHECK(further_problem(config).empty(), "decoder: ", further_problem(config));
  TORCH_CHECK(stage.embeds && context.tensor == nullptr && !storage.projections,
              "decoder: a model that predicts further tokens is not cut into stages or over "
              "tensor-parallel ranks, and not quantised");
}

// The units of one layer.
void add_layer_units(const DecoderLayer& layer, const std::string& name, const TensorPlace& tensor,
                     std::vector<UnitSpecs>& units) {
  for (std::vector<ParamSpec>& specs : layer.unit_specs()) {
    const bool is_whole = tensor.ranks > 1 && !specs.front().cut.is_cut();
    units.push_back({is_whole ? UnitRole::kWhole : UnitRole::kLayer,
                     is_whole ? name + ".whole" : name, std::move(specs)});
  }
  for (std::vector<ParamSpec>& specs : layer.experts_specs()) {
    units.push_back({UnitRole::kExperts, name + ".experts", std::move(specs)});
  }
}

// The layer that predicts a further token, and what is around it.
void add_further_units(const ModelConfig& config, const DecoderLayer& layer,
                       const TensorPlace& tensor, std::vector<UnitSpecs>& units) {
  const FurtherNames names = further_names(config);
  const int64_t width = config.hidden_size;
  units.push_back({UnitRole::kFurther,
                   "further",
                   {{names.embedding_norm, {width}},
                    {names.hidden_norm, {width}},
                    {names.projection, {width, 2 * width}}}});
  add_layer_units(layer, "further.layer", tensor, units);
  units.push_back({UnitRole::kFurtherNorm, "further.norm", {{names.final_norm, {width}}}});
}

// Of the routers that have a correction, in the order of their layers. first: of the layers.
std::vector<ParamSpec> correction_specs(const ModelConfig& config, int64_t first,
                                        const std::vector<DecoderLayer>& layers) {
  std::vector<ParamSpec> specs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ChannelMixer& mixer = layers[i].channel_mixer();
    if (mixer.supports(Feature::kRouterCorrections)) {
      specs.push_back({correction_name(config, first + static_cast<int64_t>(i)),
                       {mixer.routing().experts},
                       true});
    }
  }
  return specs;
}

// How the ranks divide the words of embedding and head.
TensorCut vocabulary_cut(const ModelConfig& config, const TensorPlace& tensor) {
  return tensor.ranks == 1
             ? TensorCut{}
             : cut_items(CutAlong::kRows, even_items(config.vocab_size, tensor.ranks));
}

// The units of a stage, in order. layers: of the stage, for a rank at this place.
std::vector<UnitSpecs> unit_specs(const ModelConfig& config, const Stage& stage,
                                  const std::vector<DecoderLayer>& layers,
                                  const TensorPlace& tensor) {
  const std::vector<int64_t> table{config.vocab_size, config.hidden_size};
  const std::string prefix = trunk_prefix(config);
  const TensorCut words = vocabulary_cut(config, tensor);
  const ParamSpec embedding{prefix + "embed_tokens.weight", table, false, words};
  std::vector<UnitSpecs> units;
  if (stage.embeds) {
    units.push_back({UnitRole::kEmbedding, "embedding", {embedding}});
  }
  for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
    add_layer_units(layers[stage.place(i)], "layers." + std::to_string(i), tensor, units);
  }
  if (stage.scores) {
    units.push_back(
        {UnitRole::kFinalNorm, "final_norm", {{prefix + "norm.weight", {config.hidden_size}}}});
  }
  if (stage.scores && stage.vocabulary &&
      (!config.tie_word_embeddings || copies_embedding(config, stage))) {
    const ParamSpec own{config.on_disk.head, table, false, words};
    units.push_back({UnitRole::kHead, "head", {config.tie_word_embeddings ? embedding : own}});
  }
  if (const auto corrections = correction_specs(config, stage.layers.begin, layers);
      !corrections.empty()) {
    units.push_back({UnitRole::kCorrections, "router_corrections", corrections});
  }
  if (stage.predicts_further(config)) {
    add_further_units(config, layers.back(), tensor, units);
  }
  if (config.vision && stage.embeds) {
    for (VisionUnitSpecs& unit : vision_unit_specs(config)) {
      units.push_back({unit.merges ? UnitRole::kVisionMerger : UnitRole::kVision,
                       std::move(unit.name), std::move(unit.specs)});
    }
  }
  return units;
}

// A unit of a layer's experts: all of them, or this rank's part of them.
std::shared_ptr<ParamUnit> experts_unit(UnitSpecs unit, const ModelConfig& config,
                                        ComputeContext context) {
  if (context.experts == nullptr) {
    return std::make_shared<ParamUnit>(unit.name, std::move(unit.specs), context);
  }
  const int64_t ranks = context.experts->ranks->size(), count = config.experts.count;
  TORCH_CHECK(ranks <= count, "model config: ", count, " experts are too few for ", ranks,
              " ranks, of which each holds at least one");
  int64_t elements = 0;  // of all experts
  for (const ParamSpec& spec : unit.specs) {
    elements += spec.numel();
  }
  UnitParts parts{context.experts->ranks, {}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    parts.ends.push_back(sp::even_part(count, ranks, rank).end * (elements / count));
  }
  context.sharding = context.experts->sharding;
  return std::make_shared<ParamUnit>(unit.name, std::move(unit.specs), context, std::move(parts));
}

std::vector<ParamSpec> without_cuts(std::vector<ParamSpec> specs) {
  for (ParamSpec& spec : specs) {
    spec.cut = {};
  }
  return specs;
}

// The context of a unit's parameters.
ComputeContext context_of(const UnitSpecs& unit, ComputeContext context) {
  if (unit.role == UnitRole::kCorrections) {
    return unsharded_context(context);
  }
  const bool is_cut = !unit.specs.empty() && unit.specs.front().cut.is_cut();
  return is_cut ? context : undivided_context(std::move(context));
}

std::shared_ptr<ParamUnit> make_unit(UnitSpecs unit, const ModelConfig& config,
                                     const ComputeContext& of_model, const WeightStorage& storage) {
  const bool is_packed = storage.projections && unit.role == UnitRole::kLayer;
  const bool is_frozen = storage.is_frozen(unit.role) && !is_packed;
  ComputeContext context = is_packed ? whole_context(of_model) : context_of(unit, of_model);
  if (is_frozen && !unit.specs.empty()) {  // no master copy, not even for a moment
    context.master = widened_dtype(unit.specs.front(), context.compute);
  }
  std::shared_ptr<ParamUnit> made =
      unit.role == UnitRole::kExperts
          ? experts_unit(std::move(unit), config, context)
          : std::make_shared<ParamUnit>(unit.name, std::move(unit.specs), context);
  if (is_frozen) {
    made->freeze(context.compute);
  }
  return made;
}

// The units of a stage that are made. Packed projections are cut once they are packed.
std::vector<UnitSpecs> made_specs(const ModelConfig& config, const Stage& stage,
                                  const std::vector<DecoderLayer>& layers,
                                  const ComputeContext& context, const WeightStorage& storage) {
  std::vector<UnitSpecs> units = unit_specs(config, stage, layers, tensor_place(context));
  if (!storage.projections || context.tensor == nullptr) {
    return units;
  }
  std::vector<UnitSpecs> whole;
  for (UnitSpecs& unit : units) {
    if (unit.role == UnitRole::kWhole) {
      std::ranges::move(unit.specs, std::back_inserter(whole.back().specs));
      continue;
    }
    whole.push_back(std::move(unit));
    if (whole.back().role == UnitRole::kLayer) {
      whole.back().specs = without_cuts(std::move(whole.back().specs));
    }
  }
  return whole;
}

// The layer of the model among whose units a unit is.
std::optional<int64_t> layer_with(const std::vector<std::vector<std::size_t>>& units_of_layers,
                                  std::size_t unit, const Stage& stage) {
  for (std::size_t layer = 0; layer < units_of_layers.size(); ++layer) {
    if (std::ranges::find(units_of_layers[layer], unit) != units_of_layers[layer].end()) {
      return stage.layers.begin + static_cast<int64_t>(layer);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<UnitSpecs> unit_specs(const ModelConfig& config, const TensorPlace& tensor) {
  const Stage stage = whole_stage(config);
  return unit_specs(config, stage, layers_of(config, stage, tensor), tensor);
}

std::vector<UnitSpecs> unit_specs(const ModelConfig& config, const Stage& stage,
                                  const TensorPlace& tensor) {
  check_stage(config, stage);
  return unit_specs(config, stage, layers_of(config, stage, tensor), tensor);
}

std::vector<ParamSpec> decoder_specs(const ModelConfig& config) {
  std::vector<ParamSpec> specs;
  for (UnitSpecs& unit : unit_specs(config)) {
    std::move(unit.specs.begin(), unit.specs.end(), std::back_inserter(specs));
  }
  return specs;
}

ComputeContext whole_context(ComputeContext context) {
  context.sharding = nullptr;
  context.experts = nullptr;
  context.pipeline = nullptr;
  context.tensor = nullptr;
  context.host_master = context.host_values = context.host_moments = false;
  return context;
}

ComputeContext undivided_context(ComputeContext context) {
  if (context.tensor != nullptr) {
    context.sharding = context.tensor->whole;
  }
  return context;
}

ComputeContext unsharded_context(ComputeContext context) {
  const auto tensor = context.tensor;
  context = whole_context(std::move(context));
  context.tensor = tensor;
  return context;
}

at::Tensor joined_values(const UnitLayout& whole, const std::vector<UnitLayout>& layouts,
                         const std::vector<at::Tensor>& values) {
  if (layouts.size() == 1 && std::ranges::equal(layouts.front().specs(), whole.specs(), {},
                                                &ParamSpec::name, &ParamSpec::name)) {
    return values.front();
  }
  const at::NoGradGuard no_grad;
  const at::Tensor all = at::empty({whole.numel()}, values.front().options());
  int64_t elements = 0;
  for (std::size_t unit = 0; unit < layouts.size(); ++unit) {
    for (std::size_t i = 0; i < layouts[unit].specs().size(); ++i) {
      const auto found =
          std::ranges::find(whole.specs(), layouts[unit].specs()[i].name, &ParamSpec::name);
      TORCH_CHECK(found != whole.specs().end(), "unit ", whole.name(), " has no parameter ",
                  layouts[unit].specs()[i].name);
      whole.view_of(all, found - whole.specs().begin())
          .copy_(layouts[unit].view_of(values[unit], i));
    }
    elements += layouts[unit].numel();
  }
  TORCH_CHECK(elements == whole.numel(), "unit ", whole.name(), " has ", whole.numel(),
              " elements, its parts ", elements);
  return all;
}

at::Tensor gathered_values(const ExportPlan& plan) {
  std::vector<UnitLayout> layouts;
  std::vector<at::Tensor> values;
  for (const ParamUnit* unit : plan.units) {
    layouts.push_back(unit->layout());
    values.push_back(unit->gathered().gather_flat());
  }
  return joined_values(plan.layout, layouts, values);
}

DecoderUnits::DecoderUnits(const ModelConfig& config, const Stage& stage,
                           const ComputeContext& context, const WeightStorage& storage,
                           const OnUnit& on_unit)
    : config_(config), stage_(stage), context_(context) {
  check_stage(config, stage);
  TORCH_CHECK(!config.vision || (stage.embeds && stage.layers.size() == config.num_hidden_layers),
              "a model with a vision tower is not cut into stages");
  check_further(config, stage, context, storage);
  layers_ = std::make_shared<const std::vector<DecoderLayer>>(
      layers_of(config, stage, tensor_place(context)));
  std::vector<std::shared_ptr<ParamUnit>> of_tower;
  for (UnitSpecs& unit : made_specs(config, stage, *layers_, context, storage)) {
    const UnitRole role = unit.role;
    all_.push_back(make_unit(std::move(unit), config, context, storage));
    register_newest(role);
    if (role == UnitRole::kVision || role == UnitRole::kVisionMerger) {
      of_tower.push_back(all_.back());
      if (!storage.trains(role)) {
        constant_.push_back(all_.back().get());
      }
    }
    on_unit(*all_.back(),
            role == UnitRole::kLayer ? &layers_->at(layer_units_.size() - 1) : nullptr);
  }
  if (config.vision) {
    tower_ = std::make_shared<const VisionTower>(config, context, std::move(of_tower));
  }
}

bool DecoderUnits::is_constant_part(const ParamUnit& unit) const {
  return std::ranges::find(constant_, &unit) != constant_.end();
}

void DecoderUnits::register_newest(UnitRole role) {
  switch (role) {
    case UnitRole::kEmbedding:
      embedding_ = all_.back();
      head_ = config_.tie_word_embeddings && stage_.scores ? embedding_ : nullptr;
      break;
    case UnitRole::kLayer:
      layer_units_.push_back({all_.size() - 1});
      experts_.emplace_back();
      break;
    case UnitRole::kWhole:
      layer_units_.back().push_back(all_.size() - 1);
      break;
    case UnitRole::kExperts:
      experts_.back().push_back(all_.size() - 1);
      break;
    case UnitRole::kFinalNorm:
      final_norm_ = all_.back();
      break;
    case UnitRole::kHead:
      head_ = all_.back();
      break;
    case UnitRole::kCorrections:
      corrections_ = all_.back();
      break;
    case UnitRole::kFurther:
      further_ = all_.back();
      break;
    case UnitRole::kFurtherNorm:
      further_norm_ = all_.back();
      break;
    case UnitRole::kVision:
    case UnitRole::kVisionMerger:
      break;
  }
}

const DecoderLayer& DecoderUnits::layer(int64_t i) const { return layers_->at(stage_.place(i)); }

std::vector<ParamUnit*> DecoderUnits::layer_units(int64_t i) const {
  std::vector<ParamUnit*> units;
  for (const std::size_t unit : layer_units_[stage_.place(i)]) {
    units.push_back(all_[unit].get());
  }
  return units;
}

std::vector<const ParamUnit*> DecoderUnits::experts(int64_t i) const {
  std::vector<const ParamUnit*> units;
  for (const std::size_t unit : experts_[stage_.place(i)]) {
    units.push_back(all_[unit].get());
  }
  return units;
}

std::optional<int64_t> DecoderUnits::layer_of(std::size_t unit) const {
  return layer_with(layer_units_, unit, stage_);
}

std::optional<int64_t> DecoderUnits::layer_of_experts(std::size_t unit) const {
  return layer_with(experts_, unit, stage_);
}

std::vector<ExportPlan> DecoderUnits::export_plans() const {
  std::vector<ExportPlan> plans;
  for (std::size_t unit = 0; unit < all_.size(); ++unit) {
    const UnitLayout& layout = all_[unit]->layout();
    const std::optional<int64_t> layer = layer_of(unit);
    if (context_.tensor == nullptr) {
      plans.push_back({layout, {all_[unit].get()}, layer, layer_of_experts(unit)});
    } else if (!layer) {
      plans.push_back({UnitLayout(layout.name(), without_cuts(layout.specs())),
                       {all_[unit].get()},
                       {},
                       layer_of_experts(unit)});
    } else if (!plans.empty() && plans.back().layer == layer) {
      plans.back().units.push_back(all_[unit].get());
    } else {
      plans.push_back({UnitLayout(layout.name(), DecoderLayer(config_, *layer).specs()),
                       {all_[unit].get()},
                       layer});
    }
  }
  return plans;
}

std::vector<ScopedUnit> DecoderUnits::scoped_units(int64_t i) const {
  const auto& sharding = context_.experts;
  const int64_t all = config_.experts.count;
  const int64_t mine =
      sharding == nullptr
          ? all
          : sp::even_part(all, sharding->ranks->size(), sharding->ranks->rank()).size();
  std::vector<ScopedUnit> units;
  const std::vector<ParamUnit*> own = layer_units(i);
  const std::vector<UnitShapes> shapes = layer(i).unit_shapes(context_.compute);
  for (std::size_t unit = 0; unit < own.size(); ++unit) {
    units.push_back({&own[unit]->gathered(), shapes[unit]});
  }
  const std::vector<UnitShapes> cuts = layer(i).experts_shapes(mine, context_.compute);
  for (std::size_t unit = 0; unit < cuts.size(); ++unit) {
    units.push_back({&all_[experts_[stage_.place(i)][unit]]->gathered(), cuts[unit]});
  }
  return units;
}

std::vector<Weight> DecoderUnits::layer_weights(int64_t i) const {
  std::vector<Weight> matrices;
  for (const ScopedUnit& unit : scoped_units(i)) {
    std::ranges::move(unit.unit->materialize(unit.cut), std::back_inserter(matrices));
  }
  return layer(i).weights_of(matrices);
}

at::Tensor DecoderUnits::router_correction(int64_t i) const {
  if (corrections_ == nullptr) {
    return {};
  }
  const std::string name = correction_name(config_, i);
  const auto found = std::ranges::find(corrections_->specs(), name, &ParamSpec::name);
  return found == corrections_->specs().end()
             ? at::Tensor()
             : corrections_->view(found - corrections_->specs().begin());
}

void DecoderUnits::prefetch_layer(int64_t i) const {
  if (i < stage_.layers.begin || i >= stage_.layers.end) {
    return;
  }
  for (const ParamUnit* unit : layer_units(i)) {
    unit->gathered().prefetch(context_.compute);
  }
  for (const ParamUnit* unit : experts(i)) {
    unit->gathered().prefetch(context_.compute);
  }
}

}  // namespace ringside::engine
