// Plan of a pass through a pipeline of stages: which stage runs which part of which input, in what
// order, and who sends what to whom. Integers only, the same on every rank.
//
// All runs and transfers of the pipeline stand in one total order: a run comes after what it needs,
// a transfer directly after the run that makes its content. Each rank executes its own part of that
// order, one event after another; a transfer is an event of both its ranks. So no transport can
// deadlock. Take the first event that is not complete: everything before it is, so each of its
// ranks stands at it, and it completes. That needs no buffer. "Receive right before use, send right
// after" is no such order: it deadlocks without buffers as soon as passes alternate.
//
// Time in which a rank runs nothing, for stages of equal cost F of a forward and B of a backward,
// and at least P inputs: (P-1) F for kForwardOnly; (P-1)(F + B) for kGpipe, kOneForwardOneBackward
// and kInterleaved, whose F and B are v times shorter; (P-1) F for both zero bubbles, if both parts
// of a backward cost F (kZeroBubbleV: and 2P-1 inputs). No schedule has less where all ranks meet
// in the optimizer's step.
//
// An input is one micro-batch. A stage takes its inputs in order, in every pass and schedule, so
// each gradient is summed in the same order and has the same bits as without stages.
//
// Shapes: P = ranks, v = stages of a rank, S = P v stages, m = inputs.
// Source: Huang et al. 2019 (GPipe); Narayanan et al. 2021a (PipeDream-Flush, 1F1B); Narayanan et
// al. 2021b (Megatron-LM, interleaved stages); Qi et al. 2023 (Zero Bubble: ZB-H1, ZB-V); Qi et al.
// 2024 (controllable memory: V-shaped schedules within a bound).
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace ringside::sp {

// A backward may be cut in two: the gradient of the stage's input, which the stage before waits
// for, and those of its weights, which nobody waits for. kBackward is both in one.
enum class PassKind : uint8_t { kForward, kBackward, kInputGradient, kWeightGradient };

struct StageRun {
  PassKind kind = PassKind::kForward;
  int64_t stage = 0;
  int64_t input = 0;
  bool operator==(const StageRun&) const = default;
};

// To the next stage: hidden states. To the stage before: their gradient. Only between stages of
// different ranks.
struct StageTransfer {
  int64_t from_stage = 0;
  int64_t to_stage = 0;
  int64_t input = 0;
  bool operator==(const StageTransfer&) const = default;
};

using PipelineEvent = std::variant<StageRun, StageTransfer>;

enum class PipelineSchedule {
  kForwardOnly,            // log-probs and values without gradient
  kGpipe,                  // all forwards, then all backwards
  kOneForwardOneBackward,  // forwards and backwards in turn; one stage a rank
  kInterleaved,            // the same; any number of stages a rank
  kZeroBubble,             // the same with backwards in two parts (ZB-H1)
  kZeroBubbleV,            // backwards in two parts; stages in a V (ZB-V)
};

// Ranks of the stages: 0 to P-1 again and again, or 0 to P-1 and back (two stages a rank). In a V
// rank 0 has the first stage and the last.
enum class StageOrder { kLoop, kVee };

struct PipelineShape {
  int64_t ranks = 1;
  int64_t stages_per_rank = 1;
  StageOrder order = StageOrder::kLoop;

  int64_t stages() const { return ranks * stages_per_rank; }
  // The rank of a stage, and the chunk-th of a rank's stages on the way forward.
  int64_t rank_of(int64_t stage) const;
  int64_t stage_of(int64_t rank, int64_t chunk) const;
  bool operator==(const PipelineShape&) const = default;
};

// Cost of a stage's passes in any unit of time, each at least 1.
struct PassCost {
  int64_t forward = 1;
  int64_t input_gradient = 1;
  int64_t weight_gradient = 1;
};

// What a plan is made from. Every rank of the world must have the same: costs of inputs that differ
// between data-parallel ranks must be combined first, for example by their maximum.
struct PipelineOptions {
  PipelineShape shape;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t inputs = 1;  // any number from 1 on, also fewer than ranks
  // Forwards of the first rank before its first backward, beyond the schedule's own; the others
  // have fewer in proportion, the last none. P-1 of them hide transfers and inputs of unequal cost.
  // For kOneForwardOneBackward and kInterleaved.
  int64_t warm_up = 0;
  // Stage inputs that a rank may hold for a backward at once; 0: as many as the schedule takes by
  // itself (own_live()).
  int64_t most_live = 0;
  std::vector<PassCost> stage_cost = {};  // [S]; empty: all 1
  std::vector<int64_t> input_cost = {};   // [m] factors of the stages' costs; empty: all 1

  // Cost of a run: the stage's times the input's.
  int64_t cost_of(const StageRun& run) const;
};

// Stage inputs that a rank holds at once under the schedule without a bound; for both zero bubbles
// at most.
//   kForwardOnly            1
//   kGpipe                  v m
//   kOneForwardOneBackward  min(m, P - rank + x)
//   kInterleaved            min(v m, (v-1) M + 2 (P-1-rank) + 1 + x)
//   kZeroBubble             min(v m, (v-1) M + P)
//   kZeroBubbleV            min(2 m, 2 P)
// x = floor(warm_up (P-1-rank) / (P-1)). M = inputs that a rank takes through one stage before it
// goes on to its next one: P where P divides m, m where it is less than P, less than 2P always.
int64_t own_live(const PipelineOptions& options, int64_t rank);

// Made by plan_pipeline().
// Thread safety: immutable.
class PipelinePlan {
 public:
  // What one rank does.
  struct RankPart {
    std::vector<PipelineEvent> events;
    int64_t most_live = 0;
    int64_t busy = 0;
  };
  // order: all events of all ranks. span: from the first run's start to the last one's end.
  PipelinePlan(const std::vector<PipelineEvent>& order, std::vector<RankPart> ranks, int64_t span);

  int64_t ranks() const { return static_cast<int64_t>(parts_.size()); }
  // A rank's part of the total order.
  // Throws: std::out_of_range when there is no such rank; also most_live() and idle().
  std::span<const PipelineEvent> events(int64_t rank) const { return parts_.at(rank).events; }
  // Stage inputs that are held at once, from the start of their forward to the end of their
  // (weights') backward.
  int64_t most_live(int64_t rank) const { return parts_.at(rank).most_live; }
  // Time of the whole pass, and that in which a rank runs nothing, in units of the costs, where
  // transfers take none.
  int64_t span() const { return span_; }
  int64_t idle(int64_t rank) const { return span_ - parts_.at(rank).busy; }
  // FNV-1a over the total order. Ranks compare it before a pass.
  uint64_t hash() const { return hash_; }

 private:
  std::vector<RankPart> parts_;
  int64_t span_ = 0;
  uint64_t hash_ = 0;
};

// The plan: by the schedule's formula, or where it has none or takes more than most_live allows, by
// a search over orders; the shorter one where both are allowed.
// Throws: std::invalid_argument on sizes or costs below 1, costs whose sum overflows, a number of
// stages a rank or an order of stages that the schedule does not have, warm_up for a schedule that
// has none, and most_live below what any order needs (v; v m for kGpipe).
// Thread safety: pure.
PipelinePlan plan_pipeline(const PipelineOptions& options);

}  // namespace ringside::sp
