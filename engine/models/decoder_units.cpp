#include "engine/models/decoder_units.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "engine/models/decoder_layer.h"
#include "engine/params/sharding.h"
#include "sp/layout/range.h"

namespace ringside::engine {
namespace {

// Of the routers that have a correction, in the order of their layers.
std::vector<ParamSpec> correction_specs(const ModelConfig& config) {
  std::vector<ParamSpec> specs;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (config.has_experts(i) && config.experts.router == RouterKind::kSigmoid) {
      specs.push_back({layer_prefix(config, i) + "mlp.gate.e_score_correction_bias",
                       {config.experts.count},
                       true});
    }
  }
  return specs;
}

}  // namespace

std::vector<UnitSpecs> unit_specs(const ModelConfig& config) {
  const int64_t v = config.vocab_size, e = config.hidden_size;
  const std::string prefix = trunk_prefix(config);
  std::vector<UnitSpecs> units{
      {UnitRole::kEmbedding, "embedding", {{prefix + "embed_tokens.weight", {v, e}}}}};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    units.push_back({UnitRole::kLayer, name, decoder_layer_specs(config, i)});
    for (std::vector<ParamSpec>& specs : layer_experts_specs(config, i)) {
      units.push_back({UnitRole::kExperts, name + ".experts", std::move(specs)});
    }
  }
  units.push_back({UnitRole::kFinalNorm, "final_norm", {{prefix + "norm.weight", {e}}}});
  if (!config.tie_word_embeddings) {
    units.push_back({UnitRole::kHead, "head", {{"lm_head.weight", {v, e}}}});
  }
  if (const auto corrections = correction_specs(config); !corrections.empty()) {
    units.push_back({UnitRole::kCorrections, "router_corrections", corrections});
  }
  return units;
}

namespace {

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

std::shared_ptr<ParamUnit> make_unit(UnitSpecs unit, const ModelConfig& config,
                                     ComputeContext context, const WeightStorage& storage) {
  const bool is_packed = storage.projections && unit.role == UnitRole::kLayer;
  const bool is_frozen = storage.is_frozen() && !is_packed;
  if (is_frozen && !unit.specs.empty()) {  // no master copy, not even for a moment
    context.master = widened_dtype(unit.specs.front(), context.compute);
  }
  std::shared_ptr<ParamUnit> made;
  if (unit.role == UnitRole::kExperts) {
    made = experts_unit(std::move(unit), config, context);
  } else {
    const bool is_whole = is_packed || unit.role == UnitRole::kCorrections;
    made = std::make_shared<ParamUnit>(unit.name, std::move(unit.specs),
                                       is_whole ? whole_context(context) : context);
  }
  if (is_frozen) {
    made->freeze(context.compute);
  }
  return made;
}

}  // namespace

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
  context.host_master = context.host_values = context.host_moments = false;
  return context;
}

DecoderUnits::DecoderUnits(const ModelConfig& config, const ComputeContext& context,
                           const WeightStorage& storage, const OnUnit& on_unit)
    : config_(config), context_(context), tied_(config.tie_word_embeddings) {
  for (UnitSpecs& unit : unit_specs(config)) {
    if (unit.role == UnitRole::kLayer) {
      layers_.push_back(all_.size());
      experts_.emplace_back();
    } else if (unit.role == UnitRole::kExperts) {
      experts_.back().push_back(all_.size());
    } else if (unit.role == UnitRole::kFinalNorm) {
      final_norm_ = all_.size();
    }
    all_.push_back(make_unit(std::move(unit), config, context, storage));
    on_unit(*all_.back(), layer_of(all_.size() - 1));
  }
}

std::vector<const ParamUnit*> DecoderUnits::experts(int64_t i) const {
  std::vector<const ParamUnit*> units;
  for (const std::size_t unit : experts_[i]) {
    units.push_back(all_[unit].get());
  }
  return units;
}

std::optional<int64_t> DecoderUnits::layer_of(std::size_t unit) const {
  const auto found = std::ranges::find(layers_, unit);
  return found == layers_.end() ? std::nullopt : std::make_optional(found - layers_.begin());
}

LayerWeights DecoderUnits::layer_weights(int64_t i) const {
  LayerWeights weights = materialize_layer(config_, i, layer(i), context_.compute);
  const std::vector<UnitShapes> cuts = experts_cuts(i);
  std::vector<Weight> of_experts;
  for (std::size_t unit = 0; unit < cuts.size(); ++unit) {
    std::ranges::move(all_[experts_[i][unit]]->materialize(cuts[unit]),
                      std::back_inserter(of_experts));
  }
  set_layer_weights(weights, config_, i, of_experts, LayerParts::kExperts);
  return weights;
}

std::vector<UnitShapes> DecoderUnits::experts_cuts(int64_t i) const {
  const auto& sharding = context_.experts;
  const int64_t all = config_.experts.count;
  const int64_t mine =
      sharding == nullptr
          ? all
          : sp::even_part(all, sharding->ranks->size(), sharding->ranks->rank()).size();
  return experts_shapes(config_, i, mine, context_.compute);
}

at::Tensor DecoderUnits::router_correction(int64_t i) const {
  if (!config_.has_experts(i) || config_.experts.router != RouterKind::kSigmoid) {
    return {};
  }
  int64_t before = 0;
  for (int64_t layer = 0; layer < i; ++layer) {
    before += config_.has_experts(layer) ? 1 : 0;
  }
  return all_.back()->view(before);
}

void DecoderUnits::prefetch_layer(int64_t i) const {
  if (i < 0 || i >= config_.num_hidden_layers) {
    return;
  }
  layer(i).prefetch(context_.compute);
  for (const ParamUnit* unit : experts(i)) {
    unit->prefetch(context_.compute);
  }
}

}  // namespace ringside::engine
