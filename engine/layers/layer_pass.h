// What a layer is given for one pass, beside its input. With tensor parallelism the input has this
// rank's rows, and positions, attention and RoPE are of the rows of all tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "engine/nn/attention_backend.h"
#include "engine/nn/expert_pass.h"
#include "engine/nn/rope.h"
#include "engine/nn/tensor_rows.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// How the MLP of a layer is computed.
struct MlpTiles {
  int64_t rows = 0;  // at a time; 0 = all at once
  // false: a recomputation, of which only the gradient path is used. Where autograd is on and the
  // value is read, the rows run once more for it.
  bool value_read = true;
};

// cos and sin of the tokens' positions, shared by the layers of a forward.
struct Ropes {
  RopeTables global;
  RopeTables local = {};  // of blocks with local_rope; empty without
  RopeTables none = {};   // that turns nothing, of blocks with no_rope; empty without
};

// Copies are cheap. What they refer to outlives the backward, unless it says otherwise.
struct LayerPass {
  std::span<const Weight> weights;  // by slot of the layer's ParamTable
  Ropes ropes;
  AttentionBackend& attention;
  MlpTiles tiles = {};
  ExpertPass experts = {};
  RowParts rows = {};  // of the residual stream, with tensor parallelism
};

}  // namespace ringside::engine
