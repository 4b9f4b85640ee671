// Orders of runs in a pipeline: those of each rank by a schedule's formula, and the timetable that
// they make together. What plans are made of (pipeline_plan.h). Integers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sp/plan/pipeline_plan.h"

namespace ringside::sp {

// [P] the runs of each rank, in its order.
using RankOrders = std::vector<std::vector<StageRun>>;

// Ends of the runs so far. A backward is where the gradient of its input is.
class RunEnds {
 public:
  // Of a pass in which nothing has run.
  RunEnds(int64_t stages, int64_t inputs)
      : stages_(stages),
        inputs_(inputs),
        ends_(static_cast<std::size_t>(3 * stages * inputs), -1) {}

  // -1: it has not run.
  int64_t of(const StageRun& run) const { return ends_[place(run)]; }
  bool has(const StageRun& run) const { return of(run) >= 0; }
  void set(const StageRun& run, int64_t end) { ends_[place(run)] = end; }

 private:
  std::size_t place(const StageRun& run) const {
    const int64_t part = run.kind == PassKind::kForward          ? 0
                         : run.kind == PassKind::kWeightGradient ? 2
                                                                 : 1;
    return static_cast<std::size_t>((part * stages_ + run.stage) * inputs_ + run.input);
  }
  int64_t stages_, inputs_;
  std::vector<int64_t> ends_;
};

// Inputs that a rank takes through one of its stages before it goes on to its next one, at most: P
// where P divides m, m where it is less than P, and less than 2P always.
int64_t largest_round(const PipelineOptions& options);

// What a run waits for: a forward for that of the stage before, a gradient for that of the stage
// behind or, on the last stage, for its forward, a weight gradient for its input gradient. Nothing
// for a forward of the first stage.
std::optional<StageRun> needed_before(const StageRun& run, const PipelineShape& shape);

// Whether a stage input is held no longer after such a run.
bool is_last_pass(PassKind kind, PipelineSchedule schedule);

// The order by the schedule's formula, with warm_up, and for kOneForwardOneBackward and
// kInterleaved with as few forwards ahead as most_live wants. Nothing for kForwardOnly in a V.
std::optional<RankOrders> formula_orders(const PipelineOptions& options);

// A run and its time.
struct TimedRun {
  StageRun run;
  int64_t rank = 0;
  int64_t end = 0;
};

// All runs by (end, rank), where each begins as soon as its rank is free and what it waits for has
// ended, and transfers take no time. So a run comes after all that it needs.
// Nothing when the orders wait for each other for ever.
std::optional<std::vector<TimedRun>> timetable(const RankOrders& orders,
                                               const PipelineOptions& options);

// Most stage inputs between the start of their forward and the end of their last pass.
int64_t most_live(const std::vector<StageRun>& order, PipelineSchedule schedule);

}  // namespace ringside::sp
