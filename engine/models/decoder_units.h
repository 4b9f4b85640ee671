// Parameter units of a decoder, and which part of the model each of them holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/layers/model_config.h"
#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"
#include "engine/params/unit_scope.h"

namespace ringside::engine {

class DecoderLayer;

enum class UnitRole { kEmbedding, kLayer, kExperts, kFinalNorm, kHead, kCorrections };

struct UnitSpecs {
  UnitRole role;
  std::string name;
  std::vector<ParamSpec> specs;
};

// The units of a model, in the order of Decoder::units(). Allocates nothing.
std::vector<UnitSpecs> unit_specs(const ModelConfig& config);

// Name and shape of every parameter of a model, in the order of Decoder::units(). Allocates
// nothing.
std::vector<ParamSpec> decoder_specs(const ModelConfig& config);

// What is kept of a decoder's parameters.
struct WeightStorage {
  bool frozen = false;  // constants in the compute dtype; otherwise trained, in the master dtype
  // The projections of all layers, packed and whole on every rank. All else is frozen.
  std::optional<QuantisedFormat> projections;

  bool is_frozen() const { return frozen || projections.has_value(); }
};

// The context of parameters that every rank holds whole, on its device.
ComputeContext whole_context(ComputeContext context);

// Copies share the units.
class DecoderUnits {
 public:
  // Called with each unit as soon as its memory is there, its values zero. layer: null but for the
  // unit of a layer without its experts. May release the unit.
  using OnUnit = std::function<void(ParamUnit& unit, const DecoderLayer* layer)>;

  // Makes the units of a model one after another. With packed projections a layer's unit is in the
  // master dtype and whole on every rank, until on_unit() has packed it.
  // Throws: c10::Error when there are fewer experts than ranks that hold them, or when experts that
  // are one tensor (GPT-OSS) shall be divided over ranks; what on_unit throws.
  DecoderUnits(const ModelConfig& config, const ComputeContext& context,
               const WeightStorage& storage, const OnUnit& on_unit);

  // Embedding, layers in order, each followed by its experts if it has any, final norm, an untied
  // head, and last the corrections of routers. The corrections are whole on every rank.
  const std::vector<std::shared_ptr<ParamUnit>>& all() const { return all_; }

  const ParamUnit& embedding() const { return *all_.front(); }
  // Layer i, 0 <= i < layers: what it computes, and its unit, without its experts.
  const DecoderLayer& layer(int64_t i) const;
  ParamUnit& layer_unit(int64_t i) const { return *all_[layer_units_[i]]; }
  // The units of the experts of layer i, in order; empty for a layer without experts.
  std::vector<const ParamUnit*> experts(int64_t i) const;
  const ParamUnit& final_norm() const { return *all_[final_norm_]; }
  // The embedding's unit with tied embeddings.
  const ParamUnit& head() const { return tied_ ? embedding() : *all_[final_norm_ + 1]; }

  // The layer whose parameters but experts all()[unit] has; nullopt for other units.
  std::optional<int64_t> layer_of(std::size_t unit) const;

  // The units of layer i, its experts' behind its own, each cut into matrices for
  // DecoderLayer::weights_of(): of the experts this rank's part.
  std::vector<ScopedUnit> scoped_units(int64_t i) const;
  // All weights of a layer, in the compute dtype.
  // Collective over: the shard, as ParamUnit::materialize().
  std::vector<Weight> layer_weights(int64_t i) const;
  // The correction of the choice of experts in a layer, [experts], fp32 or wider; undefined without
  // one.
  at::Tensor router_correction(int64_t i) const;
  // The unit of all corrections; null: no router has one.
  ParamUnit* router_corrections() const { return corrections_.get(); }

  // Starts gathering a layer's weights, if there is such a layer.
  // Collective over: the shard, as ParamUnit::prefetch().
  void prefetch_layer(int64_t i) const;

 private:
  ModelConfig config_;
  ComputeContext context_;
  std::vector<std::shared_ptr<ParamUnit>> all_;
  std::shared_ptr<const std::vector<DecoderLayer>> layers_;
  std::vector<std::size_t> layer_units_;           // each layer's place in all_
  std::vector<std::vector<std::size_t>> experts_;  // of its experts
  std::shared_ptr<ParamUnit> corrections_;
  std::size_t final_norm_ = 0;
  bool tied_ = false;
};

}  // namespace ringside::engine
