// Backend of layers that pass a state along each document. The decoder has no notion of shards or
// caches: training passes states between sequence-parallel ranks, generation keeps them.
//
// Shapes: s = tokens held by this rank, G = head groups (a key head with its value heads), v =
// value heads of a group, C = channels of a group, c = those that the convolution reads, T = taps,
// V = value dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sp/plan/state_plan.h"

namespace ringside::engine {

// Input and parameters of a gated delta net between its projections.
struct GatedDelta {
  sp::StateShape shape;
  // Of each group: q, k, the v of its value heads; then their write strengths and decays.
  at::Tensor channels_sGC;
  at::Tensor conv_GcT;
  at::Tensor log_decay_Gv;   // A_log
  at::Tensor decay_bias_Gv;  // dt_bias
};

// Thread safety: none.
class RecurrentBackend {
 public:
  virtual ~RecurrentBackend() = default;

  // Convolution, SiLU and gated delta rule of one layer, each document for itself. Differentiable
  // where autograd is on.
  // Shapes: returns [s, G, v V] in the channels' dtype.
  // Collective over: the sequence-parallel group, in backends that have one.
  virtual at::Tensor mix(int64_t layer, const GatedDelta& net) = 0;
};

}  // namespace ringside::engine
