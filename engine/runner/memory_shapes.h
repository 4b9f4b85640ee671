// What the memory of a training rank is predicted from.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/layers/activation_options.h"
#include "engine/models/adapters.h"
#include "engine/params/quantised_matrix.h"
#include "sp/plan/state_plan.h"

namespace ringside::engine {

// Where a rank's part of a model lives.
struct StateShape {
  int64_t shard_ranks = 1;   // that hold one copy of the model together; 1: this rank has all of it
  int64_t expert_ranks = 1;  // that hold all experts together, each with its own
  int64_t expert_shard_ranks = 1;  // that share one rank's experts; shard_ranks with 1 above
  int64_t zero_stage = 3;          // as Sharding::stage
  bool moments_on_host = false;
  bool masters_on_host = false;     // gradients leave for the host too
  bool parameters_on_host = false;  // between uses
};

// Adapters that are trained beside frozen weights.
struct AdapterShape {
  AdapterOptions options;
  std::optional<QuantisedFormat> base;  // of the projections; empty: frozen in the compute dtype
};

// A rank's part of a micro-batch in layers with a delta net.
struct DeltaShape {
  int64_t groups = 0;  // head groups of this rank
  int64_t runs = 0;    // pieces of documents in its ring share
  int64_t chunks = 0;  // of ChunkTables
  // Of the pieces whose maps travel.
  int64_t mapped_runs = 0;
  int64_t mapped_rows = 0;
  int64_t mapped_chunks = 0;
};

// What a rank with this plan has.
DeltaShape delta_shape(const sp::StatePlan& plan);

// The largest micro-batch of a rank, and how the rank computes it.
struct PassShape {
  int64_t tokens = 0;        // of this rank; its experts get as many rows as its tokens send
  int64_t share_tokens = 0;  // of its ring share; equal to `tokens` with one Ulysses rank
  int64_t entries = 0;       // loss entries of this rank
  int64_t query_heads = 0;   // of this rank, after the exchange of heads
  int64_t kv_heads = 0;
  int64_t ring_ranks = 1;
  bool gathers_kv = false;  // the ring gathers all keys and values, and does not pass them on
  int64_t logit_rows = 0;   // rows whose logits exist at once
  int64_t logit_bytes = 4;  // for one logit, with what is computed from it
  DeltaShape delta;         // of models with delta nets
  ActivationOptions activations;
  bool accumulates = false;  // more than one micro-batch an optimizer step
  bool trains = true;        // false: forward passes only
  StateShape state;
  std::optional<AdapterShape> adapters;  // empty: all weights are trained
};

}  // namespace ringside::engine
