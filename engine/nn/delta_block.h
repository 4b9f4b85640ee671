// Consecutive chunks of the gated delta rule (delta_rule.h) that are computed together: what they
// take from the packed rows, the matrices that follow from it, and the gradients of both. What
// passes from chunk to chunk is not here.
//
// Shapes: B = chunks x value heads, C = rows of a chunk, K, V = dims of keys and values. Matrices
// are in the accumulation dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/nn/delta_rows.h"
#include "engine/nn/recurrent_runs.h"

namespace ringside::engine {

// Gathers the slots of a block from packed rows, and adds gradients of slots back.
// Thread safety: none.
class BlockRows {
 public:
  // Chunks [first, first + count) of the tables.
  BlockRows(const ChunkTables& tables, int64_t first, int64_t count)
      : slots_(tables.slots(first, count)), count_(count) {}

  // x_ShD -> [count heads, C, D]; each of x's heads `repeats` times. Empty slots are 0.
  at::Tensor take(const at::Tensor& x_ShD, int64_t repeats, at::ScalarType dtype) const;
  // x_Sh -> [count h, C]
  at::Tensor take(const at::Tensor& x_Sh, at::ScalarType dtype) const;

  // Adjoint of take() into to_ShD, whose rows of this block are overwritten.
  void put(at::Tensor& to_ShD, const at::Tensor& x, int64_t repeats) const;
  // Adjoint of take() for x_Sh.
  void put(at::Tensor& to_Sh, const at::Tensor& x) const;

 private:
  ChunkTables::Slots slots_;
  int64_t count_;
};

// The operands of a block of chunks, all [B, ...] with B = chunks x heads.
struct DeltaBlock {
  at::Tensor q, k, v, beta;  // [B, C, K], [B, C, K], [B, C, V], [B, C, 1]
  at::Tensor decay;          // [B, C, 1] exp of the sum of g from the chunk's start
  at::Tensor rest;           // [B, C, 1] exp of the sum of g to the chunk's end
  at::Tensor whole;          // [B, 1, 1] exp of the sum of g
  at::Tensor between;        // [B, C, C] exp of the sum of g from column to row; 0 above
  at::Tensor key_product;    // [B, C, C] k k^T
  at::Tensor lower;          // [B, C, C] beta k k^T between, below the diagonal
  at::Tensor inverse;        // [B, C, C] (I + lower)^-1: what rows write given those before them
  at::Tensor q_decayed;      // q decay
  at::Tensor k_decayed;      // beta decay k
  at::Tensor k_rest;         // k rest
  at::Tensor attended;       // [B, C, C] q k^T between; without queries undefined, as q_decayed
  at::Tensor transition;     // [B, C, K] inverse k_decayed
};

// Ones where a row is in the second and its column in the first half of the same 2s rows, for
// s = 1, 2, 4, 8: load_block() inverts with them. Made once a call of the rule.
// Shapes: each [16, 16].
std::vector<at::Tensor> half_masks(const at::TensorOptions& options);

// The block's operands and matrices, in the dtype of the masks. masks: half_masks().
DeltaBlock load_block(const DeltaRows& rows, const BlockRows& slots,
                      const std::vector<at::Tensor>& masks);

// Gradients of the slots of a block, in the shapes of take().
struct DeltaGradients {
  at::Tensor q, k, v, g, beta;
};
// start, writes: states at the chunks' starts [B, K, V] and what the chunks write [B, C, V], with
// the gradients of the outputs (undefined without queries), of the writes, and of the states at
// the chunks' ends.
DeltaGradients block_gradients(const DeltaBlock& block, const at::Tensor& start,
                               const at::Tensor& writes, const at::Tensor& d_out,
                               const at::Tensor& d_writes, const at::Tensor& d_end);

}  // namespace ringside::engine
