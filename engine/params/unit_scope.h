// Scope of a unit's gathered weights: they exist while a segment of the model runs, and again
// while its backward runs.
//
// Source: PyTorch FSDP2, which frees and refills the storage of gathered parameters in the same
// way.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/params/gathered_unit.h"

namespace ringside::engine {

// What a scope runs: the unit's weights and the input to the outputs. Everything that it saves for
// its backward may refer to the weights.
using WeightSegment = std::function<std::vector<at::Tensor>(const std::vector<Weight>& weights,
                                                            const at::Tensor& input)>;

// Whether weights receive a gradient in a scope, if the unit is trained.
enum class WeightGradient { kFlows, kNone };

// The scopes of one forward, in order. Each one's backward starts the gather of the one before it.
class ScopeChain {
 public:
  // The gathered weights of one scope.
  class Buffer;

 private:
  friend std::vector<at::Tensor> run_with_weights(GatheredUnit&, const UnitShapes&,
                                                  const at::Tensor&, const WeightSegment&,
                                                  ScopeChain&, WeightGradient);
  std::weak_ptr<Buffer> last_;
};

// Returns segment(unit's weights, input). Where the unit releases its weights after use (ZeRO stage
// 3), autograd is on and the input requires a gradient, the weights are gathered again when the
// backward reaches the segment, and those of the scope before it start to travel. Otherwise it only
// calls the segment. The unit must outlive the backward.
// Collective over: the unit's shard, in the forward and in the backward.
// Throws: as GatheredUnit::materialize(), and what the segment throws.
std::vector<at::Tensor> run_with_weights(GatheredUnit& unit, const UnitShapes& cut,
                                         const at::Tensor& input, const WeightSegment& segment,
                                         ScopeChain& chain,
                                         WeightGradient gradient = WeightGradient::kFlows);

// A unit, and the matrices that it is cut into.
struct ScopedUnit {
  GatheredUnit* unit = nullptr;
  UnitShapes cut;
};

// run_with_weights() of several units, one scope inside the other: the segment gets the weights of
// all of them, in order. No units: only calls the segment.
// Collective over, throws: as above.
std::vector<at::Tensor> run_in_scopes(const std::vector<ScopedUnit>& units, const at::Tensor& input,
                                      const WeightSegment& segment, ScopeChain& chain);

}  // namespace ringside::engine
