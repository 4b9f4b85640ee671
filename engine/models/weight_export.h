// Export of a model's whole weights, unit by unit: the one collective behind publishing, saving and
// evaluation. A model may be spread over ranks so that none holds all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/device_event.h"
#include "engine/models/decoder.h"
#include "engine/models/value_model.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Which weights of a model are exported. Holds no copy: the model must outlive it. Every rank of
// the model makes the same view.
class WeightView {
 public:
  // All parameters as they act (Decoder::effective_values()): adapters merged, packed ones
  // unpacked. Of a stage its part of the model's. Implicit: a decoder stands for all of its
  // parameters.
  WeightView(const Decoder& decoder);  // NOLINT(google-explicit-constructor)
  // The trunk's parameters, then the head's, in the master dtype.
  WeightView(const ValueModel& model);  // NOLINT(google-explicit-constructor)
  // The adapters alone, which are whole on every rank.
  // Throws: c10::Error without adapters.
  static WeightView adapters_of(const Decoder& decoder);

  // Of the model, or of the value model's trunk.
  const ModelConfig& config() const { return model_->config(); }
  const Stage& stage() const { return model_->stage(); }
  const ComputeContext& context() const { return model_->context(); }
  // Name and shape of every parameter, in the order of the export.
  std::vector<ParamSpec> specs() const;
  // Bytes of all parameters in `dtype`, those of widened_dtype() in theirs.
  std::size_t bytes(at::ScalarType dtype) const;
  // Whether a rank holds only a part of some parameters.
  bool is_sharded() const;

 private:
  friend class UnitExport;
  explicit WeightView(const Decoder* model) : model_(model) {}

  const Decoder* model_;
  std::vector<const ParamUnit*> units_;
  bool acting_ = false;  // the values of effective_values(), not the units' own
};

// The whole values of one unit.
class ExportedUnit {
 public:
  // values: [elements of the unit], whole.
  ExportedUnit(const ParamUnit& unit, at::Tensor values)
      : unit_(&unit), values_(std::move(values)) {}

  // Names and shapes, in order.
  const std::vector<ParamSpec>& specs() const { return unit_->specs(); }
  // The dtype of the unit's parameters where those of others is `dtype`.
  at::ScalarType stored_dtype(at::ScalarType dtype) const {
    return widened_dtype(specs().front(), dtype);
  }
  // All parameters, one after another, on the model's device. May be a view of the weights.
  // Shapes: [elements of the unit].
  const at::Tensor& values() const { return values_; }
  // Those of specs()[i], with its shape.
  at::Tensor tensor(std::size_t i) const { return unit_->layout().view_of(values_, i); }
  // The elements of values() that belong to specs()[i].
  UnitLayout::Range range(std::size_t i) const { return unit_->layout().range(i); }
  // Makes the next change of the weights wait for a copy that still reads values().
  void hold_for(std::shared_ptr<const DeviceEvent> read) const {
    unit_->gathered().hold_for(std::move(read));
  }

 private:
  const ParamUnit* unit_;
  at::Tensor values_;
};

// The units of one export, each gathered when it is asked for.
class UnitExport {
 public:
  // `weights` must outlive it.
  explicit UnitExport(const WeightView& weights) : weights_(weights) {}

  const WeightView& weights() const { return weights_; }
  // The next unit; nullopt after the last. Drop one before asking for the next: then at most one
  // gathered unit is in memory.
  // Collective over: the ranks of the unit. Their part is in export_weights().
  std::optional<ExportedUnit> next();

 private:
  friend void export_weights(const WeightView&, const std::function<void(UnitExport&)>&,
                             sp::Communicator&, std::chrono::milliseconds);
  at::Tensor gather(std::size_t unit);
  // Takes part in gathering the units that were not asked for, unless a gather has failed.
  void skip_rest();

  const WeightView& weights_;
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

}  // namespace ringside::engine
