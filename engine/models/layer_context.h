// What the layers of one forward share beside their weights.
#pragma once

#include <cstdint>

#include "engine/nn/attention_backend.h"
#include "engine/nn/experts.h"
#include "engine/nn/load_balance.h"
#include "engine/nn/rope.h"
#include "engine/nn/route_choice.h"

namespace ringside::engine {

// How the MLP of a layer is computed.
struct MlpTiles {
  int64_t rows = 0;        // at a time; 0 = all at once
  bool value_read = true;  // false: a recomputation, of which only the gradient path is used
};

// Passed to every layer; `routes` and `experts` are of one layer.
struct LayerContext {
  RopeTables rope;
  AttentionBackend& attention;  // outlives the backward
  MlpTiles tiles = {};
  ExpertGroup experts = {};
  RopeTables local_rope = {};            // of blocks with local_rope; empty without
  LayerRoutes routes = {};               // of this layer, if it has experts
  const LoadBalance* balance = nullptr;  // of its router; null: none
};

}  // namespace ringside::engine
