// Choice of experts in a forward: the routers' own, or routes that were recorded before.
//
// Shapes: s = tokens, L = layers with experts, K = experts a token, X = experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sp/mesh/kept_results.h"

namespace ringside::engine {

// The dtype of recorded ids: uint8 for up to 256 experts, else int16.
at::ScalarType route_dtype(int64_t experts);

// Routes that one forward replays and records. Undefined tensors and false: the routers choose and
// nothing is recorded.
// Thread safety: none.
struct ForwardRoutes {
  at::Tensor replayed_sLK = {};  // ids of any integer dtype, in layer order, distinct in a row
  bool records = false;

  // Filled by the forward, layer by layer.
  std::vector<at::Tensor> recorded_sK = {};  // what was used, in route_dtype(); with `records`
  // Replayed ids that are not among the router's own choice, fp64 scalar; with replayed_sLK.
  at::Tensor changed = {};

  // [s, L, K] of what was recorded.
  // Throws: c10::Error when nothing was.
  at::Tensor recorded_sLK() const;
};

// The part of one layer in it.
struct LayerRoutes {
  ForwardRoutes* forward = nullptr;  // null: the router chooses. Read in the layer's first run only
  int64_t index = 0;                 // of the layer among those with experts
  // Holds the choice for the second run of a recomputed layer. Attention need not give the same
  // bits twice, and other experts in the second run would be another function. Null: the layer runs
  // once.
  std::shared_ptr<sp::KeptResults> kept = nullptr;

  // The experts of each token, int64 [s, K]. own: the router's choice, [s, K] int64; it is not
  // called in the second run.
  // Throws: c10::Error when the replayed routes have another shape.
  at::Tensor choose(int64_t experts, const std::function<at::Tensor()>& own) const;
};

}  // namespace ringside::engine
