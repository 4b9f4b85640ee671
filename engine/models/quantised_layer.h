// Parameters of a decoder layer whose projections are quantised. They are constants.
#pragma once

#include <memory>
#include <vector>

#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {

class DecoderLayer;

// Thread safety: const.
class QuantisedLayer {
 public:
  // Quantises the projections of a layer's unit, each by itself: the weights of its linear layers.
  // Keeps the norms and biases in the compute dtype. context: of parameters that every rank holds
  // whole. The layer supports Feature::kPackedBase and outlives this.
  // Collective over: the shard of a sharded unit.
  QuantisedLayer(const DecoderLayer& layer, const ParamUnit& unit, QuantisedFormat format,
                 const ComputeContext& context);

  // The weights for use in the layer, by slot; projections in Weight::packed.
  std::vector<Weight> weights() const;

  // All values in the order of DecoderLayer::specs(), flat: [elements of the layer] in `dtype`.
  at::Tensor unpack(at::ScalarType dtype) const;

 private:
  const DecoderLayer& layer_;
  at::ScalarType compute_;
  std::unique_ptr<ParamUnit> rest_;
  std::vector<std::shared_ptr<const PackedWeight>> packed_;  // by slot; null: in rest_
};

}  // namespace ringside::engine
