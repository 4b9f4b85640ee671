// Ranking of Ulysses x ring factorings of a number of ranks, for a model and a typical micro-batch,
// by the cost that the plans predict.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// Compute and network speed of a rank (device_speeds.h has those of known devices). FLOP/s and
// bandwidths are above 0.
struct RankSpeed {
  double flops_per_s = 0.0;       // attention
  double bytes_per_s = 0.0;       // to a rank of the same node
  double node_bytes_per_s = 0.0;  // to another node
  double transfer_seconds = 0.0;  // of a transfer without bytes
  double gemm_flops_per_s = 0.0;
  double memory_bytes_per_s = 0.0;
  int64_t ranks_per_node = 0;  // 0 = all ranks
};

// A typical micro-batch and its hardware.
struct MethodQuery {
  HeadShape heads;
  int64_t most_ulysses = 0;  // ranks; 0: as many as query heads
  std::vector<int64_t> document_lengths;
  int64_t num_ranks = 1;
  PlanOptions options;
  Placement placement = Placement::kDocumentAware;
  int64_t element_bytes = 2;
  RankSpeed speed;
};

// One factoring. Numbers are per layer, forward and backward together, of the slowest rank.
struct MethodCost {
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t bytes = 0;
  double seconds = 0.0;
  double compute_seconds = 0.0;  // of the attention alone
  // Of the transfers, whether compute hides them or not.
  double ulysses_seconds = 0.0;
  double ring_seconds = 0.0;
  // The ranks of an axis are on several nodes. Ulysses ranks are neighbours, so its axis is the
  // last to cross.
  bool ulysses_crosses_nodes = false;
  bool ring_crosses_nodes = false;
};

// Every factoring with ulysses <= query heads and most_ulysses, fastest first. Of equals, the
// larger Ulysses size comes first, because it needs no overlap. Time = attention FLOPs / speed +
// exposed transfers. All-to-alls are fully exposed; ring transfers as far as they exceed the
// compute that they overlap (backward: 2.5 x the forward's FLOPs). Of keys that are gathered all at
// once nothing is hidden. An axis that crosses nodes has their bandwidth. Throws:
// std::invalid_argument as plan_attention on impossible heads and options, and on num_ranks < 1.
// Thread safety: pure.
std::vector<MethodCost> rank_methods(const MethodQuery& query);

}  // namespace ringside::sp
