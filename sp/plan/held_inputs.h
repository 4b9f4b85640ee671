// Inputs that the stages of a pipeline's rank hold between their forward and their backward, where
// a rank with several stages holds different numbers for each.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/plan/pipeline_plan.h"

namespace ringside::sp {

// At a moment of a pass. Stages by their place among the rank's.
struct HeldInputs {
  int64_t runs = 0;                // the stage whose backward, or a part of it, runs
  std::vector<int64_t> of_stages;  // inputs of each stage, that of the backward among them
  // Of these, inputs of which one part of a backward in two has run or runs. Zeros for others.
  std::vector<int64_t> split;
  bool operator==(const HeldInputs&) const = default;
};

// Of a rank, at each backward of the plan; equal ones once. Empty for a plan without backwards.
// Throws: as PipelinePlan::events().
// Thread safety: pure.
std::vector<HeldInputs> held_at_backwards(const PipelinePlan& plan, const PipelineShape& shape,
                                          int64_t rank);

}  // namespace ringside::sp
