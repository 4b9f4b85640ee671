// Random starting weights of a decoder.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "engine/layers/model_config.h"
#include "engine/params/param_unit.h"

namespace ringside::engine {

// Normal(0, std) for matrices and embeddings; norms multiply by 1; zeros for all else. The same
// seed gives the same values, up to rounding to the dtype that is stored. Thread safety: none.
class RandomWeights {
 public:
  // std: the standard deviation of matrices and embeddings, at least 0.
  RandomWeights(const ModelConfig& config, uint64_t seed, double std);

  // Sets the unit's values on this rank. Call it for all units of Decoder::units(), in order, and
  // changed() afterwards. Every rank draws all values and keeps its own, so that they do not depend
  // on how units are sharded.
  void operator()(const ParamUnit& unit);

 private:
  at::Generator generator_;
  double std_;
  bool norms_plus_one_;
};

}  // namespace ringside::engine
