// Parameter units of a decoder or of a stage of one, and which part of the model each holds.
//
// With tensor parallelism a layer has two units beside its experts': the matrices that ranks
// divide, and what each rank uses whole, such as norms and routers. The gradient of the second is
// summed over the tensor-parallel ranks, too, which hold different rows of the residual stream.
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
#include "engine/models/stage.h"
#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"
#include "engine/params/unit_scope.h"
#include "engine/vision/vision_tower.h"

namespace ringside::engine {

class DecoderLayer;

enum class UnitRole {
  kEmbedding,
  kLayer,
  kWhole,
  kExperts,
  kFinalNorm,
  kHead,
  kCorrections,
  kFurther,      // what is before the layer that predicts a further token
  kFurtherNorm,  // behind it
  kVision,       // of the vision tower
  kVisionMerger  // of the tower, too
};

struct UnitSpecs {
  UnitRole role;
  std::string name;
  std::vector<ParamSpec> specs;
};

// The units of a model, in the order of Decoder::units(), for a rank at this place. Allocates
// nothing.
std::vector<UnitSpecs> unit_specs(const ModelConfig& config, const TensorPlace& tensor = {});

// Those of a stage of it.
std::vector<UnitSpecs> unit_specs(const ModelConfig& config, const Stage& stage,
                                  const TensorPlace& tensor = {});

// Name and shape of every parameter of a model, in the order of Decoder::units() without tensor
// parallelism, which is that of an export. Allocates nothing.
std::vector<ParamSpec> decoder_specs(const ModelConfig& config);

// What is kept of a decoder's parameters.
struct WeightStorage {
  bool frozen = false;  // constants in the compute dtype; otherwise trained, in the master dtype
  // The projections of all layers, packed and whole on every rank. All else is frozen.
  std::optional<QuantisedFormat> projections = {};
  // What is trained of the vision tower, unless all is frozen.
  VisionTraining vision = VisionTraining::kNothing;

  bool is_frozen() const { return frozen || projections.has_value(); }
  // Whether a unit of this role is trained, unless all is frozen.
  bool trains(UnitRole role) const {
    return (role != UnitRole::kVision || vision == VisionTraining::kAll) &&
           (role != UnitRole::kVisionMerger || vision != VisionTraining::kNothing);
  }
  bool is_frozen(UnitRole role) const { return is_frozen() || !trains(role); }
};

// The context of a model that every rank holds whole, on its device, outside any sharding.
ComputeContext whole_context(ComputeContext context);

// The context of parameters that tensor-parallel ranks use whole: sharded over them, too.
ComputeContext undivided_context(ComputeContext context);

// As whole_context(), for parameters of a model that is sharded: their gradients are summed over
// the tensor-parallel ranks, too.
ComputeContext unsharded_context(ComputeContext context);

// What the parameters of one unit of an export are: those of one unit of a model without tensor
// parallelism, wherever this model's units have them.
struct ExportPlan {
  UnitLayout layout;
  std::vector<const ParamUnit*> units;
  std::optional<int64_t> layer = {};       // of the model, whose parameters but experts' it has
  std::optional<int64_t> experts_of = {};  // the layer of the model whose experts' it has
};

// The whole flat buffer of `whole` from those of layouts that together have its parameters.
// Shapes: values[i] [layouts[i].numel()] -> [whole.numel()].
// Throws: c10::Error when they have not.
at::Tensor joined_values(const UnitLayout& whole, const std::vector<UnitLayout>& layouts,
                         const std::vector<at::Tensor>& values);

// The plan's values, outside autograd: a view of them where one unit has them all, on this rank.
// Shapes: [the plan's elements].
// Collective over: as GatheredUnit::gather_flat() of its units.
at::Tensor gathered_values(const ExportPlan& plan);

// Copies share the units.
class DecoderUnits {
 public:
  // Called with each unit as soon as its memory is there, its values zero. layer: null but for the
  // first unit of a layer. May release the unit.
  using OnUnit = std::function<void(ParamUnit& unit, const DecoderLayer* layer)>;

  // Makes the units of a stage one after another. With packed projections a layer has one unit but
  // its experts', in the master dtype and whole on every rank, until on_unit() has packed it.
  // Throws: as check_stage(); c10::Error when there are fewer experts than ranks that hold them,
  // when experts that are one tensor (GPT-OSS) shall be divided over ranks, and when a model with a
  // vision tower is cut into stages; what on_unit throws.
  DecoderUnits(const ModelConfig& config, const Stage& stage, const ComputeContext& context,
               const WeightStorage& storage, const OnUnit& on_unit);

  // Embedding, layers in order, each followed by its whole parameters if tensor-parallel ranks
  // divide the others, and by its experts if it has any, final norm, a head that
  // is no other unit of the stage, the corrections of routers, the layer that predicts a further
  // token between what is around it, and last the vision tower's: of these what the stage has. The
  // corrections are whole on every rank, the tower on every tensor
  // rank.
  const std::vector<std::shared_ptr<ParamUnit>>& all() const { return all_; }

  // Of a stage that embeds.
  const ParamUnit& embedding() const { return *embedding_; }
  // Layer i of the model, one of the stage's: what it computes, and its units, without its
  // experts'.
  const DecoderLayer& layer(int64_t i) const;
  std::vector<ParamUnit*> layer_units(int64_t i) const;
  // The units of the experts of layer i, in order; empty for a layer without experts.
  std::vector<const ParamUnit*> experts(int64_t i) const;
  // Of a stage that scores.
  const ParamUnit& final_norm() const { return *final_norm_; }
  // Of a stage that predicts a further token: the parameters of further_names() but the last, and
  // that one. layer() and the functions of a layer take further_layer(), too.
  const ParamUnit& further() const { return *further_; }
  const ParamUnit& further_norm() const { return *further_norm_; }
  // Of a stage that scores. With tied embeddings the embedding's unit, where the stage embeds too.
  const ParamUnit& head() const { return *head_; }

  // The layer of the model whose parameters but experts all()[unit] has; nullopt for other units.
  std::optional<int64_t> layer_of(std::size_t unit) const;
  // The layer of the model some of whose experts' parameters all()[unit] has.
  std::optional<int64_t> layer_of_experts(std::size_t unit) const;

  // The export of all(), in the same order. The same for any number of tensor-parallel ranks.
  std::vector<ExportPlan> export_plans() const;

  // The units of layer i, its experts' behind its own ones, each cut into matrices for
  // DecoderLayer::weights_of(): of the experts this rank's part.
  std::vector<ScopedUnit> scoped_units(int64_t i) const;
  // All weights of a layer, in the compute dtype.
  // Collective over: the shard, as GatheredUnit::materialize().
  std::vector<Weight> layer_weights(int64_t i) const;
  // The correction of the choice of experts in a layer, [experts], fp32 or wider; undefined without
  // one.
  at::Tensor router_correction(int64_t i) const;
  // Null: the model has none.
  const VisionTower* tower() const { return tower_.get(); }
  // Whether a unit is of a part of the tower that the storage does not train, also where all is
  // frozen: what is trained elsewhere arrives there.
  bool is_constant_part(const ParamUnit& unit) const;
  // The unit of the stage's corrections; null: no router has one.
  ParamUnit* router_corrections() const { return corrections_.get(); }

  // Starts gathering a layer's weights, if the stage has such a layer.
  // Collective over: the shard, as GatheredUnit::prefetch().
  void prefetch_layer(int64_t i) const;

 private:
  // Records which part of the model the newest unit of all_ holds.
  void register_newest(UnitRole role);

  ModelConfig config_;
  Stage stage_;
  ComputeContext context_;
  std::vector<std::shared_ptr<ParamUnit>> all_;
  // Of the stage, then the one that predicts a further token.
  std::shared_ptr<const std::vector<DecoderLayer>> layers_;
  std::vector<std::vector<std::size_t>> layer_units_;  // each layer's places in all_
  std::vector<std::vector<std::size_t>> experts_;      // of its experts
  // Among all_; null where the stage has none.
  std::shared_ptr<ParamUnit> embedding_, final_norm_, head_, corrections_;
  std::shared_ptr<ParamUnit> further_, further_norm_;
  std::shared_ptr<const VisionTower> tower_;
  std::vector<const ParamUnit*> constant_;  // parts of it
};

}  // namespace ringside::engine
