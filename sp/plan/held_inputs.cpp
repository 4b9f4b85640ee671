#include "sp/plan/held_inputs.h"

#include <algorithm>
#include <variant>

namespace ringside::sp {
namespace {

// The place of a stage among those of its rank.
int64_t chunk_of(const PipelineShape& shape, int64_t rank, int64_t stage) {
  int64_t chunk = 0;
  while (shape.stage_of(rank, chunk) != stage) {
    ++chunk;
  }
  return chunk;
}

}  // namespace

std::vector<HeldInputs> held_at_backwards(const PipelinePlan& plan, const PipelineShape& shape,
                                          int64_t rank) {
  std::vector<HeldInputs> moments;
  std::vector<int64_t> held(shape.stages_per_rank, 0), split = held;
  for (const PipelineEvent& event : plan.events(rank)) {
    const auto* run = std::get_if<StageRun>(&event);
    if (run == nullptr) {
      continue;
    }
    const int64_t chunk = chunk_of(shape, rank, run->stage);
    if (run->kind == PassKind::kForward) {
      ++held[chunk];
      continue;
    }
    split[chunk] += run->kind == PassKind::kInputGradient ? 1 : 0;
    const HeldInputs now{chunk, held, split};
    if (std::ranges::find(moments, now) == moments.end()) {
      moments.push_back(now);
    }
    held[chunk] -= run->kind == PassKind::kInputGradient ? 0 : 1;
    split[chunk] -= run->kind == PassKind::kWeightGradient ? 1 : 0;
  }
  return moments;
}

}  // namespace ringside::sp
