#include "sp/plan/pipeline_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::sp {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Kinds of passes of a schedule, the more urgent ones first.
std::vector<PassKind> kinds_of(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kForwardOnly:
      return {PassKind::kForward};
    case PipelineSchedule::kZeroBubble:
    case PipelineSchedule::kZeroBubbleV:
      return {PassKind::kInputGradient, PassKind::kForward, PassKind::kWeightGradient};
    default:
      return {PassKind::kBackward, PassKind::kForward};
  }
}

// One run of the list scheduler.
class ListScheduler {
 public:
  ListScheduler(const PipelineOptions& options, int64_t bound)
      : options_(options),
        kinds_(kinds_of(options.schedule)),
        bound_(bound),
        ends_(options.shape.stages(), options.inputs),
        next_(kinds_.size(), std::vector<int64_t>(options.shape.stages(), 0)),
        ranks_(options.shape.ranks),
        orders_(options.shape.ranks) {}

  RankOrders make() {
    const int64_t runs =
        static_cast<int64_t>(kinds_.size()) * options_.shape.stages() * options_.inputs;
    for (int64_t done = 0; done < runs; ++done) {
      const auto first = std::min_element(
          ranks_.begin(), ranks_.end(),
          [this](RankState& a, RankState& b) { return choice(a).start < choice(b).start; });
      take(*first);
    }
    return std::move(orders_);
  }
  int64_t span() const { return span_; }

 private:
  struct Choice {
    int64_t start = kNever;
    std::size_t kind = 0;  // of kinds_
    int64_t stage = 0;
  };
  struct RankState {
    int64_t free = 0;  // from when on
    int64_t live = 0;
    std::optional<Choice> choice;  // until something changes that it depends on
  };

  int64_t rank_of(const RankState& state) const { return &state - ranks_.data(); }

  // What the rank can start first; of several at the same time the most urgent.
  const Choice& choice(RankState& rank) {
    if (!rank.choice) {
      rank.choice = Choice{};
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        for (int64_t chunk = options_.shape.stages_per_rank - 1; chunk >= 0; --chunk) {
          const int64_t stage = options_.shape.stage_of(rank_of(rank), chunk);
          const int64_t start = earliest(rank, kind, stage, chunk);
          if (start < rank.choice->start) {
            rank.choice = Choice{start, kind, stage};
          }
        }
      }
    }
    return *rank.choice;
  }

  int64_t earliest(const RankState& rank, std::size_t kind, int64_t stage, int64_t chunk) const {
    const StageRun run{kinds_[kind], stage, next_[kind][stage]};
    const bool admitted = run.kind != PassKind::kForward ||
                          rank.live < bound_ - (options_.shape.stages_per_rank - 1 - chunk);
    if (run.input == options_.inputs || !admitted) {
      return kNever;
    }
    const std::optional<StageRun> before = needed_before(run, options_.shape);
    if (before && !ends_.has(*before)) {
      return kNever;
    }
    return std::max(rank.free, before ? ends_.of(*before) : 0);
  }

  void take(RankState& rank) {
    const Choice chosen = choice(rank);
    if (chosen.start == kNever) {
      throw std::logic_error("pipeline: the search for an order came to a stop");
    }
    const StageRun run{kinds_[chosen.kind], chosen.stage, next_[chosen.kind][chosen.stage]++};
    rank.free = chosen.start + options_.cost_of(run);
    rank.live += run.kind == PassKind::kForward ? 1 : 0;
    rank.live -= is_last_pass(run.kind, options_.schedule) ? 1 : 0;
    ends_.set(run, rank.free);
    span_ = std::max(span_, rank.free);
    orders_[rank_of(rank)].push_back(run);
    // The ranks of the neighbouring stages, its own among them, may have a new choice.
    for (int64_t stage = std::max<int64_t>(0, run.stage - 1);
         stage <= std::min(options_.shape.stages() - 1, run.stage + 1); ++stage) {
      ranks_[options_.shape.rank_of(stage)].choice.reset();
    }
  }

  const PipelineOptions& options_;
  std::vector<PassKind> kinds_;
  int64_t bound_;
  RunEnds ends_;
  std::vector<std::vector<int64_t>> next_;  // [kinds][S] inputs
  std::vector<RankState> ranks_;
  RankOrders orders_;
  int64_t span_ = 0;
};

// Cost of all runs of a rank.
int64_t work_of(const PipelineOptions& options, int64_t rank) {
  int64_t work = 0;
  for (const PassKind kind : kinds_of(options.schedule)) {
    for (int64_t chunk = 0; chunk < options.shape.stages_per_rank; ++chunk) {
      for (int64_t input = 0; input < options.inputs; ++input) {
        work += options.cost_of({kind, options.shape.stage_of(rank, chunk), input});
      }
    }
  }
  return work;
}

}  // namespace

int64_t least_span(const PipelineOptions& options) {
  int64_t least = 0, wait = 0;
  for (int64_t stage = 0; stage < options.shape.ranks; ++stage) {
    least = std::max(least, wait + work_of(options, options.shape.rank_of(stage)));
    wait += options.cost_of({PassKind::kForward, stage, 0});
  }
  return least;
}

RankOrders search_orders(const PipelineOptions& options, int64_t bound) {
  if (bound < options.shape.stages_per_rank) {
    throw std::invalid_argument(
        "pipeline: an input must be live on all " + std::to_string(options.shape.stages_per_rank) +
        " stages of a rank at once, but most_live is " + std::to_string(bound));
  }
  const int64_t least = least_span(options);
  const int64_t all = options.shape.stages_per_rank * options.inputs;
  RankOrders best;
  int64_t shortest = kNever;
  for (int64_t b = options.shape.stages_per_rank; b <= std::min(bound, all) && shortest > least;
       ++b) {
    ListScheduler scheduler(options, b);
    RankOrders orders = scheduler.make();
    if (scheduler.span() < shortest) {
      shortest = scheduler.span();
      best = std::move(orders);
    }
  }
  return best;
}

}  // namespace ringside::sp
