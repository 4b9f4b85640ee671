// Parameters of a decoder layer whose projections are quantised. They are constants.
#pragma once

#include <memory>

#include "engine/models/decoder_layer.h"
#include "engine/models/model_config.h"
#include "engine/params/param_unit.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {

// Thread safety: const.
class QuantisedLayer {
 public:
  // Quantises the projections of a unit made from decoder_layer_specs(), each by itself. Keeps the
  // norms and biases in the compute dtype. context: of parameters that every rank holds whole.
  // The layer has softmax attention and an MLP.
  // Collective over: the shard of a sharded unit.
  QuantisedLayer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                 QuantisedFormat format, const ComputeContext& context);

  // The weights for use in a layer, projections in Weight::packed.
  LayerWeights weights() const;

  // All values in the order of decoder_layer_specs(), flat: [elements of the layer] in `dtype`.
  at::Tensor unpack(at::ScalarType dtype) const;

 private:
  using Packed = std::shared_ptr<const PackedWeight>;

  ModelConfig config_;
  int64_t layer_;
  at::ScalarType compute_;
  std::vector<ParamSpec> specs_;  // of the whole layer
  std::unique_ptr<ParamUnit> rest_;
  Packed qkv_, o_, gate_up_, down_;
};

}  // namespace ringside::engine
