#include "sp/plan/pipeline_orders.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "sp/layout/range.h"

namespace ringside::sp {
namespace {

// Runs of one rank, appended by kind and chunk. Inputs beyond the pass are left out.
class OrderWriter {
 public:
  OrderWriter(const PipelineOptions& options, int64_t rank)
      : shape_(options.shape), inputs_(options.inputs), rank_(rank) {}

  void add(PassKind kind, int64_t chunk, int64_t input) {
    if (input >= 0 && input < inputs_) {
      order_.push_back({kind, shape_.stage_of(rank_, chunk), input});
    }
  }
  std::vector<StageRun> take() { return std::move(order_); }

 private:
  PipelineShape shape_;
  int64_t inputs_, rank_;
  std::vector<StageRun> order_;
};

// A stage of the rank and an input.
struct ChunkInput {
  int64_t chunk, input;
};

int64_t num_rounds(const PipelineOptions& options) {
  return std::max<int64_t>(1, options.inputs / options.shape.ranks);
}

// Rounds of inputs in which a rank takes its chunks one after another: as many as there can be of
// at least P inputs, because then the first one is back from the last rank when the rank has done
// the others. The first rounds are the larger ones, by one.
std::vector<Range> rounds_of(const PipelineOptions& options) {
  const int64_t count = num_rounds(options);
  std::vector<Range> rounds;
  for (int64_t r = 0; r < count; ++r) {
    rounds.push_back(even_part(options.inputs, count, r));
  }
  return rounds;
}

std::vector<ChunkInput> in_rounds(const std::vector<Range>& rounds, int64_t chunks, bool backward) {
  std::vector<ChunkInput> order;
  for (const Range& round : rounds) {
    for (int64_t c = 0; c < chunks; ++c) {
      for (int64_t input = round.begin; input < round.end; ++input) {
        order.push_back({backward ? chunks - 1 - c : c, input});
      }
    }
  }
  return order;
}

std::vector<StageRun> forward_only(const PipelineOptions& options, int64_t rank) {
  OrderWriter order(options, rank);
  for (const ChunkInput& f : in_rounds(rounds_of(options), options.shape.stages_per_rank, false)) {
    order.add(PassKind::kForward, f.chunk, f.input);
  }
  return order.take();
}

std::vector<StageRun> gpipe(const PipelineOptions& options, int64_t rank) {
  std::vector<StageRun> runs = forward_only(options, rank);
  OrderWriter order(options, rank);
  for (const ChunkInput& b : in_rounds(rounds_of(options), options.shape.stages_per_rank, true)) {
    order.add(PassKind::kBackward, b.chunk, b.input);
  }
  const std::vector<StageRun> backwards = order.take();
  runs.insert(runs.end(), backwards.begin(), backwards.end());
  return runs;
}

// 1F1B, its interleaved form and ZB-H1: `ahead` forwards, then forwards and backwards in turn, then
// the other backwards. Backwards in two parts: weight gradients come `delay` input gradients later.
struct InTurn {
  int64_t ahead = 0;
  bool splits = false;
  int64_t delay = 0;
};

std::vector<StageRun> in_turn(const PipelineOptions& options, int64_t rank, const InTurn& turn) {
  const int64_t chunks = options.shape.stages_per_rank;
  const std::vector<ChunkInput> forwards = in_rounds(rounds_of(options), chunks, false);
  const std::vector<ChunkInput> backwards = in_rounds(rounds_of(options), chunks, true);
  OrderWriter order(options, rank);
  const auto add = [&](PassKind kind, const std::vector<ChunkInput>& of, int64_t k) {
    if (k >= 0 && k < static_cast<int64_t>(of.size())) {
      order.add(kind, of[k].chunk, of[k].input);
    }
  };
  const int64_t runs = static_cast<int64_t>(forwards.size());
  for (int64_t k = 0; k < runs + turn.ahead + turn.delay; ++k) {
    add(PassKind::kForward, forwards, k);
    add(turn.splits ? PassKind::kInputGradient : PassKind::kBackward, backwards, k - turn.ahead);
    if (turn.splits) {
      add(PassKind::kWeightGradient, backwards, k - turn.ahead - turn.delay);
    }
  }
  return order.take();
}

std::vector<StageRun> one_forward_one_backward(const PipelineOptions& options, int64_t rank) {
  int64_t live = own_live(options, rank);
  if (options.most_live > 0) {
    live = std::min(live, options.most_live);
  }
  return in_turn(options, rank, {.ahead = live - 1});
}

std::vector<StageRun> zero_bubble(const PipelineOptions& options, int64_t rank) {
  const int64_t chunks = options.shape.stages_per_rank;
  const int64_t ahead =
      std::min(chunks * options.inputs - 1,
               (chunks - 1) * largest_round(options) + options.shape.ranks - 1 - rank);
  return in_turn(options, rank, {.ahead = ahead, .splits = true, .delay = rank});
}

// ZB-V, for at least 2P-1 inputs; with fewer, those that are missing are left out.
class ZeroBubbleV {
 public:
  ZeroBubbleV(const PipelineOptions& options, int64_t rank)
      : order_(options, rank),
        ranks_(options.shape.ranks),
        rank_(rank),
        inputs_(std::max(options.inputs, 2 * options.shape.ranks - 1)) {}

  std::vector<StageRun> make() {
    const int64_t behind = ranks_ - rank_;
    repeat(2 * behind - 1, [&] { forward(0); });
    repeat(rank_, [&] { forward(1), forward(0); });
    repeat(behind, [&] { forward(1), backward(1), weights(1); });
    repeat(inputs_ - ranks_, [&] {
      forward(0), backward(0), weights(0);
      forward(1), backward(1), weights(1);
    });
    repeat(rank_, [&] { backward(0), backward(1); });
    repeat(behind, [&] { backward(0), weights(0); });
    repeat(rank_, [&] { weights(1); });
    repeat(rank_, [&] { weights(0); });
    return order_.take();
  }

 private:
  template <typename Step>
  static void repeat(int64_t times, const Step& step) {
    for (int64_t i = 0; i < times; ++i) {
      step();
    }
  }
  void forward(int64_t chunk) { order_.add(PassKind::kForward, chunk, forwards_[chunk]++); }
  void backward(int64_t chunk) { order_.add(PassKind::kInputGradient, chunk, backwards_[chunk]++); }
  void weights(int64_t chunk) { order_.add(PassKind::kWeightGradient, chunk, weights_[chunk]++); }

  OrderWriter order_;
  int64_t ranks_, rank_, inputs_;
  // Inputs done so far, of each chunk.
  int64_t forwards_[2] = {}, backwards_[2] = {}, weights_[2] = {};
};

using Formula = std::vector<StageRun> (*)(const PipelineOptions&, int64_t);

Formula formula_of(const PipelineOptions& options) {
  switch (options.schedule) {
    case PipelineSchedule::kForwardOnly:
      return options.shape.order == StageOrder::kLoop ? &forward_only : nullptr;
    case PipelineSchedule::kGpipe:
      return &gpipe;
    case PipelineSchedule::kOneForwardOneBackward:
    case PipelineSchedule::kInterleaved:
      return &one_forward_one_backward;
    case PipelineSchedule::kZeroBubble:
      return &zero_bubble;
    case PipelineSchedule::kZeroBubbleV:
      return [](const PipelineOptions& o, int64_t rank) { return ZeroBubbleV(o, rank).make(); };
  }
  throw std::invalid_argument("pipeline: unknown schedule");
}

}  // namespace

int64_t largest_round(const PipelineOptions& options) {
  return even_part(options.inputs, num_rounds(options), 0).size();
}

std::optional<StageRun> needed_before(const StageRun& run, const PipelineShape& shape) {
  switch (run.kind) {
    case PassKind::kForward:
      if (run.stage == 0) {
        return std::nullopt;
      }
      return StageRun{run.kind, run.stage - 1, run.input};
    case PassKind::kBackward:
    case PassKind::kInputGradient:
      if (run.stage == shape.stages() - 1) {
        return StageRun{PassKind::kForward, run.stage, run.input};
      }
      return StageRun{run.kind, run.stage + 1, run.input};
    case PassKind::kWeightGradient:
      return StageRun{PassKind::kInputGradient, run.stage, run.input};
  }
  throw std::invalid_argument("pipeline: unknown kind of pass");
}

std::optional<RankOrders> formula_orders(const PipelineOptions& options) {
  const Formula formula = formula_of(options);
  if (formula == nullptr) {
    return std::nullopt;
  }
  RankOrders orders;
  for (int64_t rank = 0; rank < options.shape.ranks; ++rank) {
    orders.push_back(formula(options, rank));
  }
  return orders;
}

std::optional<std::vector<TimedRun>> timetable(const RankOrders& orders,
                                               const PipelineOptions& options) {
  RunEnds ends(options.shape.stages(), options.inputs);
  std::vector<std::size_t> next(orders.size(), 0);
  std::vector<int64_t> free(orders.size(), 0);
  std::vector<TimedRun> runs;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      for (; next[rank] < orders[rank].size(); ++next[rank], moved = true) {
        const StageRun& run = orders[rank][next[rank]];
        const std::optional<StageRun> before = needed_before(run, options.shape);
        if (before && !ends.has(*before)) {
          break;
        }
        free[rank] = std::max(free[rank], before ? ends.of(*before) : 0) + options.cost_of(run);
        ends.set(run, free[rank]);
        runs.push_back({run, static_cast<int64_t>(rank), free[rank]});
      }
    }
  }
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    if (next[rank] < orders[rank].size()) {
      return std::nullopt;
    }
  }
  std::sort(runs.begin(), runs.end(), [](const TimedRun& a, const TimedRun& b) {
    return std::tie(a.end, a.rank) < std::tie(b.end, b.rank);
  });
  return runs;
}

bool is_last_pass(PassKind kind, PipelineSchedule schedule) {
  return kind == PassKind::kBackward || kind == PassKind::kWeightGradient ||
         schedule == PipelineSchedule::kForwardOnly;
}

int64_t most_live(const std::vector<StageRun>& order, PipelineSchedule schedule) {
  int64_t live = 0, most = 0;
  for (const StageRun& run : order) {
    live += run.kind == PassKind::kForward ? 1 : 0;
    most = std::max(most, live);
    live -= is_last_pass(run.kind, schedule) ? 1 : 0;
  }
  return most;
}

}  // namespace ringside::sp
