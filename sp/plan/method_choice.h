// Ranking of Ulysses x ring factorings of a number of ranks, for a model and a typical micro-batch,
// by the cost that the plans predict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// Compute and network speed of a rank. Assumptions for the ranking, not measurements.
struct RankSpeed {
  double flops_per_s = 0.0;
  double bytes_per_s = 0.0;
};
inline constexpr RankSpeed kGpuNvlink{400e12, 350e9};  // bf16 attention on an H100 or H200, NVLink
inline constexpr RankSpeed kCpuLoopback{40e9, 2e9};  // fp32 on a core or two, ranks on one machine

// A typical micro-batch and its hardware.
struct MethodQuery {
  HeadShape heads;
  std::vector<int64_t> document_lengths;
  int64_t num_ranks = 1;
  PlanOptions options;
  Placement placement = Placement::kDocumentAware;
  int64_t element_bytes = 2;
  RankSpeed speed = kGpuNvlink;
};

// One factoring. Numbers are per layer, forward and backward together, of the slowest rank.
struct MethodCost {
  int64_t ulysses = 1;
  int64_t ring = 1;
  int64_t bytes = 0;
  double seconds = 0.0;
};

// Every factoring with ulysses <= query heads, fastest first. Of equals, the larger Ulysses size
// comes first, because it needs no overlap. Time = attention FLOPs / speed + exposed transfers.
// All-to-alls are fully exposed; ring transfers as far as they exceed the compute that they overlap
// (backward: 2.5 x the forward's FLOPs).
// Throws: std::invalid_argument as plan_attention on impossible heads, and on num_ranks < 1.
std::vector<MethodCost> rank_methods(const MethodQuery& query);

// "ulysses 4 x ring 2: 1.2 MiB a layer and rank, 0.3 ms predicted".
std::string describe(const MethodCost& cost);

}  // namespace ringside::sp
