// Random starting weights of a decoder or of a stage of one.
#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

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
  // changed() afterwards. Every rank draws the values of all units up to this one and keeps its
  // own, so that they do not depend on how units are sharded or cut, nor on the stages of the
  // model.
  // Throws: c10::Error when the model has no such parameters.
  void operator()(const ParamUnit& unit);

 private:
  // Draws what comes before a parameter of the model. keeps_skipped: keeps the generator of each
  // parameter of the same layer that is skipped, which another unit has.
  void skip_to(const std::string& name, bool keeps_skipped);
  // The generator that draws a parameter.
  at::Generator& generator_at(const std::string& name, bool keeps_skipped);

  uint64_t seed_;
  at::Generator generator_;
  double std_;
  bool norms_plus_one_;
  std::string tower_;                             // beginning of the names of the vision tower
  std::vector<ParamSpec> specs_;                  // of the whole model
  std::size_t next_ = 0;                          // of them, the one that generator_ draws next
  std::map<std::string, at::Generator> skipped_;  // before each of these parameters
  at::Generator passed_;                          // the last one taken from skipped_
};

}  // namespace ringside::engine
