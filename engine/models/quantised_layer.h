// Parameters of a decoder layer whose projections are quantised. They are constants.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/layers/model_config.h"
#include "engine/layers/param_table.h"
#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {

class DecoderLayer;

// Thread safety: const.
class QuantisedLayer {
 public:
  // Quantises the projections of a layer, each by itself: the weights of its linear layers. Keeps
  // the norms and biases in the compute dtype. Whole matrices are quantised, and then cut for this
  // rank's place in the context's tensor sharding; so the values do not depend on it.
  // unit: all of DecoderLayer::specs(), whole on this rank. The layer supports Feature::kPackedBase
  // and outlives this.
  // Throws: as QuantisedMatrix::piece().
  QuantisedLayer(const DecoderLayer& layer, const ParamUnit& unit, QuantisedFormat format,
                 const ComputeContext& context);

  // The weights for use in the layer, by slot; projections in Weight::packed.
  std::vector<Weight> weights() const;

  // All values of each of DecoderLayer::unit_specs(), whole and flat, in `dtype`.
  // Collective over: the tensor-parallel ranks.
  std::vector<at::Tensor> unpack(at::ScalarType dtype) const;

 private:
  // This rank's values of a weight's parameters, one after another.
  // of_rest: of rest_'s parameters, the next one.
  void append_values(Slot slot, at::ScalarType dtype, std::size_t& of_rest,
                     std::vector<at::Tensor>& values) const;

  const DecoderLayer& layer_;
  ComputeContext context_;
  std::unique_ptr<ParamUnit> rest_;
  std::vector<std::shared_ptr<const PackedWeight>> packed_;  // by slot; null: in rest_
};

// Why the quantised projections of a model cannot be divided over `ranks` tensor-parallel ranks: a
// clause that names the first one. "" when they can.
std::string packed_cut_problem(const ModelConfig& config, QuantisedFormat format, int64_t ranks);

}  // namespace ringside::engine
