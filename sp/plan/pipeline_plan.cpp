#include "sp/plan/pipeline_plan.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "sp/layout/fnv_hash.h"
#include "sp/plan/pipeline_orders.h"
#include "sp/plan/pipeline_search.h"

namespace ringside::sp {
namespace {

// Costs are small enough that no product of two of them overflows.
constexpr int64_t kLargestCost = int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("pipeline: " + what);
}

void check_at_least(int64_t value, int64_t least, const char* what) {
  if (value < least) {
    refuse(std::string(what) + " must be at least " + std::to_string(least) + ", got " +
           std::to_string(value));
  }
}

void check_cost(int64_t cost) {
  if (cost < 1 || cost > kLargestCost) {
    refuse("a cost must be 1 to 2^31, got " + std::to_string(cost));
  }
}

void check_count(std::size_t got, int64_t expected, const char* what) {
  if (got != 0 && static_cast<int64_t>(got) != expected) {
    refuse(std::to_string(got) + " costs for " + std::to_string(expected) + " " + what);
  }
}

void check_costs(const PipelineOptions& options) {
  check_count(options.stage_cost.size(), options.shape.stages(), "stages");
  check_count(options.input_cost.size(), options.inputs, "inputs");
  int64_t stages = options.stage_cost.empty() ? 3 * options.shape.stages() : 0;
  for (const PassCost& cost : options.stage_cost) {
    for (const int64_t part : {cost.forward, cost.input_gradient, cost.weight_gradient}) {
      check_cost(part);
      stages += part;
    }
  }
  int64_t inputs = options.input_cost.empty() ? options.inputs : 0;
  for (const int64_t cost : options.input_cost) {
    check_cost(cost);
    inputs += cost;
  }
  int64_t all = 0;
  if (__builtin_mul_overflow(stages, inputs, &all)) {
    refuse("the sum of all costs overflows; use a larger unit");
  }
}

void check_shape(const PipelineOptions& options) {
  const PipelineShape& shape = options.shape;
  check_at_least(shape.ranks, 1, "ranks");
  check_at_least(shape.stages_per_rank, 1, "stages of a rank");
  check_at_least(options.inputs, 1, "inputs");
  const bool vee = shape.order == StageOrder::kVee;
  if (vee && shape.stages_per_rank != 2) {
    refuse("a V has 2 stages a rank, got " + std::to_string(shape.stages_per_rank));
  }
  if (options.schedule == PipelineSchedule::kZeroBubbleV && !vee) {
    refuse("zero_bubble_v needs stages in a V");
  }
  if (vee && options.schedule != PipelineSchedule::kZeroBubbleV &&
      options.schedule != PipelineSchedule::kForwardOnly) {
    refuse("stages in a V are for zero_bubble_v and for forwards only");
  }
  if (options.schedule == PipelineSchedule::kOneForwardOneBackward && shape.stages_per_rank != 1) {
    refuse("1f1b has one stage a rank, got " + std::to_string(shape.stages_per_rank) +
           "; interleaved takes several");
  }
}

void check_bounds(const PipelineOptions& options) {
  const bool warms_up = options.schedule == PipelineSchedule::kOneForwardOneBackward ||
                        options.schedule == PipelineSchedule::kInterleaved;
  check_at_least(options.warm_up, 0, "warm_up");
  if (options.warm_up > 0 && !warms_up) {
    refuse("warm_up is for 1f1b and interleaved only");
  }
  check_at_least(options.most_live, 0, "most_live");
  const int64_t all = options.shape.stages_per_rank * options.inputs;
  if (options.schedule == PipelineSchedule::kGpipe && options.most_live > 0 &&
      options.most_live < all) {
    refuse("gpipe holds all " + std::to_string(all) + " stage inputs, but most_live is " +
           std::to_string(options.most_live) + "; the other schedules hold fewer");
  }
}

// The first rank has all of warm_up, the last none: what hides unequal inputs is that a rank is
// further ahead of the one behind it.
int64_t extra_warm_up(const PipelineOptions& options, int64_t rank) {
  const int64_t behind = options.shape.ranks - 1;
  return behind == 0 ? 0 : options.warm_up * (behind - rank) / behind;
}

int64_t largest_live(const RankOrders& orders, PipelineSchedule schedule) {
  int64_t most = 0;
  for (const std::vector<StageRun>& order : orders) {
    most = std::max(most, most_live(order, schedule));
  }
  return most;
}

// The bound of a search; forwards alone hold nothing.
int64_t search_bound(const PipelineOptions& options) {
  if (options.schedule == PipelineSchedule::kForwardOnly) {
    return options.shape.stages_per_rank;
  }
  return options.most_live > 0 ? options.most_live : own_live(options, 0);
}

// The timetable by formula, if it has one within most_live.
std::optional<std::vector<TimedRun>> formula_timetable(const PipelineOptions& options) {
  const std::optional<RankOrders> orders = formula_orders(options);
  if (!orders ||
      (options.most_live > 0 && largest_live(*orders, options.schedule) > options.most_live)) {
    return std::nullopt;
  }
  return timetable(*orders, options);
}

// Whether a search may find a shorter pass than the formula.
bool may_improve(const PipelineOptions& options) {
  switch (options.schedule) {
    case PipelineSchedule::kInterleaved:
      return options.most_live > 0 && options.most_live < own_live(options, 0);
    case PipelineSchedule::kZeroBubble:
    case PipelineSchedule::kZeroBubbleV:
      return true;
    default:
      return false;
  }
}

std::vector<TimedRun> best_timetable(const PipelineOptions& options) {
  std::optional<std::vector<TimedRun>> formula = formula_timetable(options);
  if (formula && (!may_improve(options) || formula->back().end == least_span(options))) {
    return std::move(*formula);
  }
  std::vector<TimedRun> searched =
      timetable(search_orders(options, search_bound(options)), options).value();
  return formula && formula->back().end <= searched.back().end ? std::move(*formula)
                                                               : std::move(searched);
}

// The transfer that follows a run, if its stage's neighbour is on another rank.
std::optional<StageTransfer> transfer_after(const StageRun& run, const PipelineShape& shape) {
  if (run.kind == PassKind::kWeightGradient) {
    return std::nullopt;
  }
  const int64_t to = run.stage + (run.kind == PassKind::kForward ? 1 : -1);
  if (to < 0 || to >= shape.stages() || shape.rank_of(to) == shape.rank_of(run.stage)) {
    return std::nullopt;
  }
  return StageTransfer{run.stage, to, run.input};
}

}  // namespace

int64_t PipelineShape::rank_of(int64_t stage) const {
  const int64_t place = stage % ranks;
  const bool back = order == StageOrder::kVee && stage / ranks % 2 == 1;
  return back ? ranks - 1 - place : place;
}

int64_t PipelineShape::stage_of(int64_t rank, int64_t chunk) const {
  const bool back = order == StageOrder::kVee && chunk % 2 == 1;
  return chunk * ranks + (back ? ranks - 1 - rank : rank);
}

int64_t PipelineOptions::cost_of(const StageRun& run) const {
  const PassCost stage = stage_cost.empty() ? PassCost{} : stage_cost[run.stage];
  const int64_t factor = input_cost.empty() ? 1 : input_cost[run.input];
  switch (run.kind) {
    case PassKind::kForward:
      return factor * stage.forward;
    case PassKind::kBackward:
      return factor * (stage.input_gradient + stage.weight_gradient);
    case PassKind::kInputGradient:
      return factor * stage.input_gradient;
    case PassKind::kWeightGradient:
      return factor * stage.weight_gradient;
  }
  throw std::invalid_argument("pipeline: unknown kind of pass");
}

int64_t own_live(const PipelineOptions& options, int64_t rank) {
  const int64_t ranks = options.shape.ranks, chunks = options.shape.stages_per_rank;
  const int64_t all = chunks * options.inputs;
  switch (options.schedule) {
    case PipelineSchedule::kForwardOnly:
      return 1;
    case PipelineSchedule::kGpipe:
      return all;
    case PipelineSchedule::kOneForwardOneBackward:
      return std::min(all, ranks - rank + extra_warm_up(options, rank));
    case PipelineSchedule::kInterleaved:
      return std::min(all, (chunks - 1) * largest_round(options) + 2 * (ranks - 1 - rank) + 1 +
                               extra_warm_up(options, rank));
    case PipelineSchedule::kZeroBubble:
      return std::min(all, (chunks - 1) * largest_round(options) + ranks);
    case PipelineSchedule::kZeroBubbleV:
      return std::min(all, 2 * ranks);
  }
  throw std::invalid_argument("pipeline: unknown schedule");
}

PipelinePlan::PipelinePlan(const std::vector<PipelineEvent>& order, std::vector<RankPart> ranks,
                           int64_t span)
    : parts_(std::move(ranks)), span_(span) {
  FnvHash hash;
  hash.add(static_cast<int64_t>(parts_.size()));
  for (const PipelineEvent& event : order) {
    if (const StageRun* run = std::get_if<StageRun>(&event)) {
      hash.add(static_cast<int64_t>(run->kind));
      hash.add(run->stage);
      hash.add(run->input);
    } else {
      const StageTransfer& transfer = std::get<StageTransfer>(event);
      hash.add(-1);
      hash.add(transfer.from_stage);
      hash.add(transfer.to_stage);
      hash.add(transfer.input);
    }
  }
  hash_ = hash.value();
}

PipelinePlan plan_pipeline(const PipelineOptions& options) {
  check_shape(options);
  check_costs(options);
  check_bounds(options);
  std::vector<PipelineEvent> order;
  std::vector<PipelinePlan::RankPart> ranks(options.shape.ranks);
  std::vector<std::vector<StageRun>> runs(options.shape.ranks);
  const std::vector<TimedRun> table = best_timetable(options);
  for (const TimedRun& timed : table) {
    order.push_back(timed.run);
    ranks[timed.rank].events.push_back(timed.run);
    ranks[timed.rank].busy += options.cost_of(timed.run);
    runs[timed.rank].push_back(timed.run);
    if (const auto transfer = transfer_after(timed.run, options.shape)) {
      order.push_back(*transfer);
      ranks[timed.rank].events.push_back(*transfer);
      ranks[options.shape.rank_of(transfer->to_stage)].events.push_back(*transfer);
    }
  }
  for (int64_t rank = 0; rank < options.shape.ranks; ++rank) {
    ranks[rank].most_live = most_live(runs[rank], options.schedule);
  }
  return PipelinePlan(order, std::move(ranks), table.back().end);
}

}  // namespace ringside::sp
