// Export of a model's whole weights, unit by unit: the one collective behind publishing, saving and
// evaluation. A model may be spread over ranks so that none holds all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/models/decoder.h"
#include "engine/models/pipeline.h"
#include "engine/models/value_model.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// This rank's stages of a model, and what its parameters' names begin with in an export.
struct PrefixedStages {
  std::string prefix;
  std::vector<const Decoder*> stages;
};

// Which weights of a model are exported. Holds no copy: the model must outlive it. Every rank of
// the model makes the same view, in a pipeline of the stages that it has: the view is of the whole
// model all the same.
class WeightView {
 public:
  // All parameters as they act (effective_values()): adapters merged, packed ones
  // unpacked. Of a stage without a pipeline its part of the model's. Implicit: a decoder stands for
  // all of its parameters.
  WeightView(const Decoder& decoder);  // NOLINT(google-explicit-constructor)
  // Of this rank's stages of a model.
  explicit WeightView(const std::vector<const Decoder*>& stages);
  // The trunk's parameters, then the head's, in the master dtype.
  WeightView(const ValueModel& model);  // NOLINT(google-explicit-constructor)
  // All parameters of this rank's stages but the parts of a vision tower that are not trained,
  // which are those of the directory that the model began with.
  static WeightView of_changing(const std::vector<const Decoder*>& stages);
  // The adapters alone, which are whole on every rank of a stage.
  // Throws: c10::Error without adapters.
  static WeightView adapters_of(const Decoder& decoder);
  static WeightView adapters_of(const std::vector<const Decoder*>& stages);
  // The same of several models that share a base, one after another; the names of each one's
  // parameters begin with its prefix.
  static WeightView adapters_of(const std::vector<PrefixedStages>& models);

  // Of the model, or of the value model's trunk.
  const ModelConfig& config() const { return model_->config(); }
  // What is exported of it: all, in a pipeline.
  Stage stage() const { return pipeline() != nullptr ? whole_stage(config()) : model_->stage(); }
  const ComputeContext& context() const { return model_->context(); }
  // Which ranks have the stages of the model; nullptr: there are none.
  const Pipeline* pipeline() const { return model_->context().pipeline.get(); }
  // Of the adapters, where they are exported or merged; nullptr: none.
  const Adapters* adapters() const { return model_->adapters(); }
  // Name and shape of every parameter, in the order of the export.
  std::vector<ParamSpec> specs() const;
  // Bytes of all parameters in `dtype`, those of widened_dtype() in theirs.
  std::size_t bytes(at::ScalarType dtype) const;
  // Whether a rank holds only a part of some parameters.
  bool is_sharded() const;

 private:
  friend class UnitExport;
  // A unit of the model, on this rank or, without units in its plan, on another one of the line.
  struct Unit {
    ExportPlan plan;
    const Decoder* stage = nullptr;  // whose acting_values() are exported; null: the plan's own
    int64_t owner = 0;               // its rank in the line
    std::string prefix = {};         // before its parameters' names
    bool is_here() const { return !plan.units.empty(); }
  };

  explicit WeightView(const Decoder* model) : model_(model) {}
  // Adds the units of all stages of the line. own: this rank's stages; acting: their
  // acting_values().
  void add_line(const std::vector<const Decoder*>& own, bool acting);

  const Decoder* model_;
  std::vector<Unit> units_;
};

// The whole values of one unit. The units of an export are the same for any number of
// tensor-parallel ranks.
class ExportedUnit {
 public:
  // values: [elements of the plan], whole. The plan outlives it.
  ExportedUnit(const ExportPlan& plan, at::Tensor values, std::string prefix = "")
      : plan_(&plan), values_(std::move(values)), prefix_(std::move(prefix)) {}

  // Names, without a prefix, and shapes, in order.
  const std::vector<ParamSpec>& specs() const { return plan_->layout.specs(); }
  // The name of specs()[i] in the export, behind the prefix of its model.
  std::string name(std::size_t i) const { return prefix_ + specs()[i].name; }
  // The dtype of the unit's parameters where those of others is `dtype`.
  at::ScalarType stored_dtype(at::ScalarType dtype) const {
    return widened_dtype(specs().front(), dtype);
  }
  // All parameters, one after another, on the model's device. May be a view of the weights.
  // Shapes: [elements of the unit].
  const at::Tensor& values() const { return values_; }
  // Those of specs()[i], with its shape.
  at::Tensor tensor(std::size_t i) const { return plan_->layout.view_of(values_, i); }
  // The elements of values() that belong to specs()[i].
  UnitLayout::Range range(std::size_t i) const { return plan_->layout.range(i); }
  // Makes the next change of the weights wait for a copy that still reads values().
  void hold_for(const std::shared_ptr<const DeviceEvent>& read) const {
    for (const ParamUnit* unit : plan_->units) {
      unit->gathered().hold_for(read);
    }
  }

 private:
  const ExportPlan* plan_;
  at::Tensor values_;
  std::string prefix_;
};

// The units of one export, each gathered when it is asked for.
class UnitExport {
 public:
  // `weights` must outlive it.
  explicit UnitExport(const WeightView& weights) : weights_(weights) {}

  const WeightView& weights() const { return weights_; }
  // The next unit; nullopt after the last. Drop one before asking for the next: then at most one
  // gathered unit is in memory.
  // Collective over: the ranks of the unit, and in a pipeline the line. Their part is in
  // export_weights().
  std::optional<ExportedUnit> next();

 private:
  friend void export_weights(const WeightView&, const std::function<void(UnitExport&)>&,
                             sp::Communicator&, std::chrono::milliseconds);
  // The unit's values; undefined where another rank of the line has them and none of this line
  // wants them.
  at::Tensor gather(const WeightView::Unit& unit);
  // The values that are exported, of those that are stored.
  at::Tensor acting(const WeightView::Unit& unit, const at::Tensor& values) const;
  // Takes part in gathering the units that were not asked for, unless a gather has failed.
  void skip_rest();

  const WeightView& weights_;
  bool wanted_in_line_ = true;  // a rank of the line has a sink
  std::size_t next_ = 0;
  bool is_broken_ = false;  // a gather has failed
};

// Takes the units of an export, in order; it need not take all. Whatever it throws ends the export
// on every rank.
using WeightSink = std::function<void(UnitExport& units)>;

// Gives whole weights to the ranks that want them. Every rank of the run calls it, with an empty
// sink where nobody wants the bytes; with empty sinks alone nothing is gathered. When a sink
// throws, its rank still takes part in the remaining gathers, so that no rank waits for ever.
// world: all ranks of the run. round: as of sp::run_rank_work(). The sinks must not use `world`.
// Collective over: `world`, and the ranks over which the model is spread.
// Blocks: until all sinks have returned, however long that takes. Between two units a sink may take
// as long as a collective.
// Throws: on the lowest rank whose sink threw, that exception; on all other ranks sp::RankFailed.
void export_weights(const WeightView& weights, const WeightSink& sink, sp::Communicator& world,
                    std::chrono::milliseconds round = std::chrono::seconds(5));

// The same for a model that is whole on this rank. Not collective.
// Throws: what the sink throws; c10::Error for a sharded model.
void export_weights(const WeightView& weights, const WeightSink& sink);

// A decoder of its own with all parameters on the device, outside any sharding: constants in the
// compute dtype. It scores as the exported model does. For use in a sink.
// Collective over: as UnitExport::next().
std::unique_ptr<Decoder> whole_copy(UnitExport& units);

// The adapters of all layers, outside any pipeline, of a view of adapters. For use in a sink.
// Collective over: as UnitExport::next().
std::unique_ptr<Adapters> whole_adapters(UnitExport& units);

}  // namespace ringside::engine
