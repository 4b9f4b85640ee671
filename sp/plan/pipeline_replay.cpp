#include "sp/plan/pipeline_replay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "sp/plan/pipeline_orders.h"

namespace ringside::sp {
namespace {

std::string text_of(const StageRun& run) {
  static constexpr const char* kNames[] = {"forward", "backward", "input gradient",
                                           "weight gradient"};
  return std::string(kNames[static_cast<int>(run.kind)]) + " of input " +
         std::to_string(run.input) + " on stage " + std::to_string(run.stage);
}

std::string text_of(const StageTransfer& transfer) {
  return "transfer of input " + std::to_string(transfer.input) + " from stage " +
         std::to_string(transfer.from_stage) + " to stage " + std::to_string(transfer.to_stage);
}

std::string text_of(const PipelineEvent& event) {
  return std::visit([](const auto& e) { return text_of(e); }, event);
}

std::string rank_name(std::size_t rank) { return "rank " + std::to_string(rank) + ": "; }

// The run whose result a transfer brings, in RunEnds.
StageRun content_of(const StageTransfer& transfer) {
  const bool hidden = transfer.to_stage > transfer.from_stage;
  return {hidden ? PassKind::kForward : PassKind::kBackward, transfer.from_stage, transfer.input};
}

// The pass as it goes on when nothing is buffered.
class RendezvousReplay {
 public:
  RendezvousReplay(const RankEvents& events, const PipelineOptions& options)
      : events_(events),
        options_(options),
        next_(events.size(), 0),
        live_(events.size(), 0),
        runs_(options.shape.stages(), options.inputs),
        delivered_(options.shape.stages(), options.inputs),
        next_input_(static_cast<std::size_t>(3 * options.shape.stages()), 0) {}

  std::vector<std::string> faults() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < events_.size(); ++rank) {
        while (next_[rank] < events_[rank].size() && step(rank)) {
          moved = true;
        }
      }
    }
    report_waiting();
    report_missing();
    return std::move(faults_);
  }

 private:
  // Executes the rank's next event; false when it must wait.
  bool step(std::size_t rank) {
    const PipelineEvent& event = events_[rank][next_[rank]];
    if (const StageRun* run = std::get_if<StageRun>(&event)) {
      execute(rank, *run);
      ++next_[rank];
      return true;
    }
    const StageTransfer& transfer = std::get<StageTransfer>(event);
    const std::optional<std::size_t> other = other_end(rank, transfer);
    if (!other) {
      fault(rank, text_of(transfer) + " is not one of its own");
      ++next_[rank];
      return true;
    }
    if (next_[*other] == events_[*other].size() || events_[*other][next_[*other]] != event) {
      return false;
    }
    deliver(rank, transfer);
    ++next_[rank];
    ++next_[*other];
    return true;
  }

  std::optional<std::size_t> other_end(std::size_t rank, const StageTransfer& transfer) const {
    const auto is_stage = [&](int64_t stage) {
      return stage >= 0 && stage < options_.shape.stages();
    };
    const int64_t way = transfer.to_stage - transfer.from_stage;
    const bool is_input = transfer.input >= 0 && transfer.input < options_.inputs;
    if (!is_stage(transfer.from_stage) || !is_stage(transfer.to_stage) || !is_input ||
        (way != 1 && way != -1)) {
      return std::nullopt;
    }
    const auto from = static_cast<std::size_t>(options_.shape.rank_of(transfer.from_stage));
    const auto to = static_cast<std::size_t>(options_.shape.rank_of(transfer.to_stage));
    if (from == to || (rank != from && rank != to)) {
      return std::nullopt;
    }
    return rank == from ? to : from;
  }

  void execute(std::size_t rank, const StageRun& run) {
    if (run.stage < 0 || run.stage >= options_.shape.stages() || run.input < 0 ||
        run.input >= options_.inputs ||
        options_.shape.rank_of(run.stage) != static_cast<int64_t>(rank)) {
      fault(rank, text_of(run) + " is not one of its own");
      return;
    }
    if (runs_.has(run)) {
      fault(rank, text_of(run) + " is twice");
      return;
    }
    check_needs(rank, run);
    runs_.set(run, 0);
    int64_t& next_input = next_input_[stage_part(run)];
    if (run.input != next_input) {
      fault(rank, text_of(run) + " is out of order, expected input " + std::to_string(next_input));
    }
    next_input = run.input + 1;
    kinds_.insert(run.kind);
    live_[rank] += run.kind == PassKind::kForward ? 1 : 0;
    if (options_.most_live > 0 && live_[rank] > options_.most_live) {
      fault(rank, text_of(run) + " makes " + std::to_string(live_[rank]) +
                      " live inputs; most_live is " + std::to_string(options_.most_live));
    }
    live_[rank] -= is_last_pass(run.kind, options_.schedule) ? 1 : 0;
  }

  void check_needs(std::size_t rank, const StageRun& run) {
    const std::optional<StageRun> before = needed_before(run, options_.shape);
    if (!before) {
      return;
    }
    const bool arrives = options_.shape.rank_of(before->stage) != static_cast<int64_t>(rank);
    if (!(arrives ? delivered_ : runs_).has(*before)) {
      fault(rank,
            text_of(run) + " is before the " + text_of(*before) + (arrives ? " has arrived" : ""));
    }
  }

  void deliver(std::size_t rank, const StageTransfer& transfer) {
    const StageRun content = content_of(transfer);
    if (!runs_.has(content)) {
      fault(rank, text_of(transfer) + " is before its content is made");
    }
    if (delivered_.has(content)) {
      fault(rank, text_of(transfer) + " is twice");
    }
    delivered_.set(content, 0);
  }

  void report_waiting() {
    for (std::size_t rank = 0; rank < events_.size(); ++rank) {
      if (next_[rank] < events_[rank].size()) {
        fault(rank, "waits for ever at the " + text_of(events_[rank][next_[rank]]));
      }
    }
  }

  // Runs, and transfers, that no rank has executed. After a stop the waiting ranks say enough.
  void report_missing() {
    if (!faults_.empty()) {
      return;
    }
    const bool split =
        kinds_.contains(PassKind::kWeightGradient) || kinds_.contains(PassKind::kInputGradient);
    if (split && kinds_.contains(PassKind::kBackward)) {
      faults_.push_back("backwards are both whole and in parts");
    }
    std::vector<PassKind> kinds{PassKind::kForward};
    if (options_.schedule != PipelineSchedule::kForwardOnly) {
      kinds.push_back(split ? PassKind::kInputGradient : PassKind::kBackward);
    }
    if (split) {
      kinds.push_back(PassKind::kWeightGradient);
    }
    for (int64_t stage = 0; stage < options_.shape.stages(); ++stage) {
      for (int64_t input = 0; input < options_.inputs; ++input) {
        for (const PassKind kind : kinds) {
          report_missing({kind, stage, input});
        }
      }
    }
  }

  void report_missing(const StageRun& run) {
    const auto rank = static_cast<std::size_t>(options_.shape.rank_of(run.stage));
    if (!runs_.has(run)) {
      fault(rank, text_of(run) + " is missing");
    }
  }

  std::size_t stage_part(const StageRun& run) const {
    const int64_t part = run.kind == PassKind::kForward          ? 0
                         : run.kind == PassKind::kWeightGradient ? 2
                                                                 : 1;
    return static_cast<std::size_t>(part * options_.shape.stages() + run.stage);
  }

  void fault(std::size_t rank, const std::string& what) {
    faults_.push_back(rank_name(rank) + what);
  }

  const RankEvents& events_;
  const PipelineOptions& options_;
  std::vector<std::size_t> next_;    // [P] event
  std::vector<int64_t> live_;        // [P]
  RunEnds runs_;                     // those that were executed
  RunEnds delivered_;                // those whose results have arrived
  std::vector<int64_t> next_input_;  // of each part of a stage
  std::set<PassKind> kinds_;
  std::vector<std::string> faults_;
};

// The pass with transfers that take time and do not hold up their ranks.
class TimedReplay {
 public:
  TimedReplay(const RankEvents& events, const PipelineOptions& options, int64_t transfer)
      : events_(events),
        options_(options),
        transfer_(transfer),
        next_(events.size(), 0),
        free_(events.size(), 0),
        ends_(options.shape.stages(), options.inputs),
        arrived_(options.shape.stages(), options.inputs) {}

  int64_t span() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < events_.size(); ++rank) {
        while (next_[rank] < events_[rank].size() && step(rank)) {
          ++next_[rank];
          moved = true;
        }
      }
    }
    return *std::max_element(free_.begin(), free_.end());
  }

 private:
  bool step(std::size_t rank) {
    const PipelineEvent& event = events_[rank][next_[rank]];
    if (const StageTransfer* transfer = std::get_if<StageTransfer>(&event)) {
      if (options_.shape.rank_of(transfer->from_stage) == static_cast<int64_t>(rank)) {
        int64_t& line = line_free_[{rank, transfer->to_stage > transfer->from_stage,
                                    options_.shape.rank_of(transfer->to_stage)}];
        line = std::max(line, ends_.of(content_of(*transfer))) + transfer_;
        arrived_.set(content_of(*transfer), line);
      }
      return true;
    }
    const StageRun& run = std::get<StageRun>(event);
    const std::optional<StageRun> before = needed_before(run, options_.shape);
    int64_t ready = 0;
    if (before && options_.shape.rank_of(before->stage) != static_cast<int64_t>(rank)) {
      if (!arrived_.has(*before)) {
        return false;
      }
      ready = arrived_.of(*before);
    } else if (before) {
      ready = ends_.of(*before);
    }
    free_[rank] = std::max(free_[rank], ready) + options_.cost_of(run);
    ends_.set(run, free_[rank]);
    return true;
  }

  const RankEvents& events_;
  const PipelineOptions& options_;
  int64_t transfer_;
  std::vector<std::size_t> next_;  // [P] event
  std::vector<int64_t> free_;      // [P] from when on
  RunEnds ends_;                   // of runs
  RunEnds arrived_;                // transfers, by their content
  // When the queue of a rank, direction and other rank is free.
  std::map<std::tuple<std::size_t, bool, int64_t>, int64_t> line_free_;
};

}  // namespace

RankEvents events_of(const PipelinePlan& plan) {
  RankEvents events;
  for (int64_t rank = 0; rank < plan.ranks(); ++rank) {
    const auto own = plan.events(rank);
    events.emplace_back(own.begin(), own.end());
  }
  return events;
}

std::vector<std::string> faults_of(const RankEvents& events, const PipelineOptions& options) {
  if (static_cast<int64_t>(events.size()) != options.shape.ranks) {
    throw std::invalid_argument("pipeline: events of " + std::to_string(events.size()) +
                                " ranks for a pipeline of " + std::to_string(options.shape.ranks));
  }
  return RendezvousReplay(events, options).faults();
}

std::vector<std::string> faults_of(const PipelinePlan& plan, const PipelineOptions& options) {
  return faults_of(events_of(plan), options);
}

int64_t replayed_span(const PipelinePlan& plan, const PipelineOptions& options, int64_t transfer) {
  const RankEvents events = events_of(plan);
  const std::vector<std::string> faults = faults_of(events, options);
  if (!faults.empty()) {
    throw std::invalid_argument("pipeline: a plan with faults cannot be replayed: " +
                                faults.front());
  }
  return TimedReplay(events, options, transfer).span();
}

}  // namespace ringside::sp
