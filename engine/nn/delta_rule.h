// Gated delta rule: a linear attention whose state per head is a matrix S [K, V]. Row t decays it,
// writes its value at its key, and reads it with its query:
//   S = exp(g_t) S;  S = S + k_t (beta_t (v_t - S^T k_t))^T;  out_t = S^T q_t
// Computed in chunks of rows as matrix products. States and sums are in fp32, and in fp64 for
// doubles. Keys must have at most unit length, queries are scaled by the caller.
//
// Shapes: S = rows, k = key heads, h = value heads (a multiple of k: key head i serves value heads
// i h/k and on), K, V = their dims, n = initial states, r = runs.
// Source: Yang et al. 2024, Gated Delta Networks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "engine/nn/delta_rows.h"
#include "engine/nn/recurrent_runs.h"

namespace ringside::engine {

// What the rule gives.
struct DeltaResult {
  at::Tensor out_ShV;   // dtype of v; undefined without queries
  at::Tensor end_rhKV;  // state at the end of each run, accumulation dtype
};

// The outputs of all rows and the end states of all runs. Differentiable once in all rows and the
// initial states. Only the states at the chunks' starts are kept for the backward, which computes
// the rest again.
// Shapes: initial_nhKV has one state for each run without `after`, in their order, in the
// accumulation dtype; undefined: zeros.
// Throws: c10::Error on shapes or dtypes that do not fit.
DeltaResult delta_rule(const DeltaRows& rows, const std::shared_ptr<const ChunkTables>& tables,
                       const at::Tensor& initial_nhKV = {});

// Affine maps of runs, which take the state at a run's start to the state at its end:
// end = transition start + added.
struct DeltaMaps {
  at::Tensor added_rhKV;
  at::Tensor transition_rhKK;
};
// The map of each run. All runs must be without `after`; queries are not read. Differentiable once.
// Shapes: k_SkK, g_Sh, beta_Sh, v_ShV as above; returns the accumulation dtype.
// Throws: c10::Error when a run continues another, and as delta_rule().
DeltaMaps delta_maps(const DeltaRows& rows, const std::shared_ptr<const ChunkTables>& tables);

// Chunks whose matrices are in memory together, of runs with many. Beside the states at the chunks'
// starts, memory does not grow with the rows.
int64_t delta_chunks_at_once(int64_t heads, int64_t key_dim, int64_t value_dim,
                             c10::DeviceType device);

// One row of each of n sequences, for generation: updates state_nhKV in place and returns out_nhV.
// Not differentiable.
// Shapes: rows as above with S = n, queries among them; the state in the accumulation dtype.
// Throws: c10::Error on rows that do not fit each other.
at::Tensor delta_step(const DeltaRows& rows, at::Tensor& state_nhKV);

}  // namespace ringside::engine
