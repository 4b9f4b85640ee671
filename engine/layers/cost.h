// Cost of a mixer in a pass of one rank, predicted from shapes before anything runs. The mixers
// themselves say it (TokenMixer::cost() and work(), ChannelMixer::cost()); predictions of memory,
// bytes and FLOPs are made of that.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "engine/layers/activation_options.h"
#include "sp/heads/head_split.h"
#include "sp/plan/state_plan.h"

namespace ringside::engine {

// A rank's part of a micro-batch in layers that pass a state.
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

// A micro-batch as a rank's mixers see it. With tensor parallelism tokens and heads are those of
// the cut matrices: tokens of all tensor ranks, heads of this one.
struct MixerShape {
  int64_t tokens = 0;        // of this rank; its experts get as many rows as its tokens send
  int64_t share_tokens = 0;  // of its ring share; equal to `tokens` with one Ulysses rank
  int64_t query_heads = 0;   // of this rank, after the exchange of heads
  int64_t kv_heads = 0;
  int64_t ring_ranks = 1;
  bool gathers_kv = false;      // the ring gathers all keys and values, and does not pass them on
  int64_t expert_ranks = 1;     // that hold all experts together
  int64_t mlp_tile_tokens = 0;  // as ActivationOptions
  int64_t tensor_ranks = 1;     // that divide the rows of the residual stream
  DeltaShape delta = {};
  int64_t compute = 4;  // bytes of a number of the compute dtype, and of sums
  int64_t sums = 4;
  c10::DeviceType device = c10::DeviceType::CPU;

  // Rows of the residual stream of the tensor rank with the most.
  int64_t own_rows() const { return (tokens + tensor_ranks - 1) / tensor_ranks; }
};

// Memory in a layer's forward and backward. Bytes, unless said otherwise. Adapters are not part of
// it, nor the matrices of its projections, which follow from the table.
struct Cost {
  int64_t saved = 0;       // by the forward for the backward, without recomputation
  int64_t kept = 0;        // of a token mixer by selective, of a channel mixer by any recomputation
  int64_t recomputed = 0;  // of a channel mixer: what a second forward saves at a time
  int64_t flowing = 0;     // at the peak of its backward, beside what was saved
  int64_t buffers = 0;     // of communication, at that peak
  int64_t gradients = 0;   // elements of its own weights' gradients at that peak
  int64_t weights = 0;     // elements of a channel mixer's projections, of all experts of this rank
  int64_t unpacked = 0;    // elements of packed projections, while a product of the mixer uses them
  int64_t tables = 0;      // of a micro-batch, which all layers of the kind share
};

// How ranks share a micro-batch's documents, where there is no plan yet.
struct RankGrid {
  int64_t ring = 1;
  int64_t ulysses = 1;
  int64_t tensor = 1;
  double tokens = 0.0;   // of the micro-batch, on all ranks
  double element = 4.0;  // bytes of a number of the compute dtype
  Recompute recompute = Recompute::kNone;
  std::vector<int64_t> documents = {};  // their lengths
};

// What a rank does for a token mixer in a micro-batch, on average over the ranks. FLOPs are those
// of a forward, beside those of the projections.
struct MixerWork {
  double products = 0.0;   // FLOPs of products of matrices
  double attention = 0.0;  // FLOPs of attention
  double sent = 0.0;       // bytes in a forward and backward
};

// Elements of a row that tensor-parallel ranks exchange for a mixer: gathered before its cut
// matrices, and summed behind them. 0: it computes whole rows.
struct TensorWidths {
  int64_t gathered = 0;
  int64_t summed = 0;
};

// Bytes that a tensor rank sends for a mixer in a forward and backward of a micro-batch, on average
// over the ranks.
double tensor_sent(const TensorWidths& widths, const RankGrid& grid);

// Bytes at the peak of a mixer's backward that tensor ranks alone have: the gathered gradient of
// the sum, or later the partial gradient of the gathered rows. What arrives of that is there when
// the inner rows are gone. 0 for one rank.
int64_t tensor_buffers(const TensorWidths& widths, const MixerShape& shape);

// For mixers that attend with such heads: whether the heads are divided over Ulysses ranks.
bool exchanges(const sp::HeadShape& heads, const MixerShape& shape);
// Attention's inputs in the layout of this rank's own heads, and its output in that of its tokens.
int64_t exchanged_inputs(const sp::HeadShape& heads, const MixerShape& shape);
int64_t exchanged_output(const sp::HeadShape& heads, const MixerShape& shape);
// saved: what the mixer saves before attention. Adds what attention's node saves itself.
Cost attention_cost(const sp::HeadShape& heads, const MixerShape& shape, int64_t saved);

// Bytes are those without pruning: the closed formulas of the plans. With a window a share passes
// on at most what the windows of its two ends reach.
MixerWork attention_work(const sp::HeadShape& heads, int64_t window, const RankGrid& grid);

}  // namespace ringside::engine
