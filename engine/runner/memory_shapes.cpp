#include "engine/runner/memory_shapes.h"

#include <algorithm>

#include "engine/nn/delta_rule.h"

namespace ringside::engine {

DeltaShape delta_shape(const sp::StatePlan& plan) {
  DeltaShape shape;
  shape.groups = plan.own_groups().size();
  shape.runs = static_cast<int64_t>(plan.runs.size());
  const auto chunks_of = [](const sp::StatePlan::Run& run) {
    return std::max<int64_t>(1, (run.rows.size() + ChunkTables::kChunk - 1) / ChunkTables::kChunk);
  };
  for (const sp::StatePlan::Run& run : plan.runs) {
    shape.chunks += chunks_of(run);
  }
  if (plan.maps_travel) {
    shape.mapped_runs = static_cast<int64_t>(plan.mapped_runs.size());
    for (const int64_t run : plan.mapped_runs) {
      shape.mapped_rows += plan.runs[run].rows.size();
      shape.mapped_chunks += chunks_of(plan.runs[run]);
    }
  }
  return shape;
}

}  // namespace ringside::engine
