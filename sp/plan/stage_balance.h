// Balance of a model's layers over the stages of a pipeline. Integers only.
//
// The stage with the most work sets the pace of all, so layers are cut by their work and not by
// their number: layers differ, and the head is as much work as several layers. The head computes
// loss entries only, so it counts with the share of tokens that are entries.
//
// Shapes: L = layers, S = stages, P = ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/plan/pipeline_plan.h"

namespace ringside::sp {

// Of a part of the model, each 0 or more.
struct PartCost {
  int64_t work = 0;   // of a typical micro-batch, in any unit of time
  int64_t bytes = 0;  // that its rank holds for it: weights, gradients, optimizer state
};

struct ModelParts {
  std::vector<PartCost> layers;  // [L]
  PartCost embedding;            // on the first stage
  PartCost head;                 // on the last stage, with the final norm; its work is that of the
                                 // micro-batch's loss entries
  // Embedding and head are one parameter, whose bytes are in both. A rank with both ends has it
  // once; else the first and the last rank have a copy each.
  bool tied = false;
};

// Each stage's layers. The first and the last stage may have none: an embedding or a head alone.
struct StageBalance {
  std::vector<Range> layers;  // [S]
  int64_t most_work = 0;      // of a stage
};

// The stages with the least most work; of those the ones with the fewest most bytes of a stage; of
// those the most even ones, by the sum of the squares of their work.
// Throws: std::invalid_argument when there are fewer than 1 or more than L + 2 stages, on negative
// numbers, and when all work together is 2^31 or more: use a larger unit.
// Thread safety: pure. Takes S L^2 steps.
StageBalance balance_stages(const ModelParts& parts, int64_t stages);

// [P] bytes of each rank, over all its stages.
// Throws: std::invalid_argument unless `stages` has the ranges of layers of all stages of `shape`.
std::vector<int64_t> bytes_of_ranks(const ModelParts& parts, const std::vector<Range>& stages,
                                    const PipelineShape& shape);

}  // namespace ringside::sp
