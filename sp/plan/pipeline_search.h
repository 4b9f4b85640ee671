// Search for the order of runs in a pipeline within a bound on live inputs, for what has no formula
// (pipeline_orders.h). Integers only.
//
// A list scheduler over integer time. A rank that is free takes, of what is ready, an input
// gradient before a forward before a weight gradient, and of several the one of the later stage;
// stages take their inputs in order. A forward must leave a place for each later stage of its
// rank: else inputs that are on their way could block each other.
//
// Source: Qi et al. 2023 (Zero Bubble), section 3; Qi et al. 2024 (controllable memory).
#pragma once

#include <cstdint>

#include "sp/plan/pipeline_orders.h"

namespace ringside::sp {

// The orders with the shortest pass over all bounds from the number of stages a rank to `bound`,
// because a larger bound may make a longer pass; with the smallest bound among equals. Backwards
// are in two parts for both zero bubbles, in one for the others, and none for kForwardOnly.
// Throws: std::invalid_argument when `bound` is below the number of stages a rank.
RankOrders search_orders(const PipelineOptions& options, int64_t bound);

// A pass cannot be shorter: each rank first waits for the first input, then has its own work.
int64_t least_span(const PipelineOptions& options);

}  // namespace ringside::sp
