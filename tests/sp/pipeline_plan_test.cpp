// Guards: pipelines that deadlock on a transport without buffers, passes that are lost, doubled or
// before what they need, idle time and memory other than the schedule's, plans that differ between
// ranks, and short or unequal inputs that a schedule does not take.
#include "sp/plan/pipeline_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "sp/plan/held_inputs.h"
#include "sp/plan/pipeline_replay.h"

using namespace ringside::sp;

namespace {

using Schedule = PipelineSchedule;

constexpr Schedule kSchedules[] = {Schedule::kForwardOnly, Schedule::kGpipe,
                                   Schedule::kOneForwardOneBackward, Schedule::kInterleaved,
                                   Schedule::kZeroBubble};

std::string text_of(const PipelineOptions& o) {
  return "schedule " + std::to_string(static_cast<int>(o.schedule)) + ", P " +
         std::to_string(o.shape.ranks) + ", v " + std::to_string(o.shape.stages_per_rank) +
         (o.shape.order == StageOrder::kVee ? " in a V" : "") + ", m " + std::to_string(o.inputs) +
         ", most_live " + std::to_string(o.most_live);
}

PipelineOptions in_vee(Schedule schedule, int64_t ranks, int64_t inputs, int64_t most_live = 0) {
  return {{ranks, 2, StageOrder::kVee}, schedule, inputs, 0, most_live};
}

// Every schedule and shape of the acceptance grid.
template <typename Check>
void for_each_pipeline(const std::vector<int64_t>& inputs, const Check& check) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t m : inputs) {
      for (int64_t v = 1; v <= 4; ++v) {
        for (const Schedule schedule : kSchedules) {
          if (v == 1 || schedule != Schedule::kOneForwardOneBackward) {
            check(PipelineOptions{{ranks, v}, schedule, m});
          }
        }
      }
      check(in_vee(Schedule::kForwardOnly, ranks, m));
      check(in_vee(Schedule::kZeroBubbleV, ranks, m));
    }
  }
}

std::vector<int64_t> up_to(int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t n = 1; n <= last; ++n) {
    numbers.push_back(n);
  }
  return numbers;
}

// Least and most idle time of a rank, with all costs 1; equal where there is a formula.
std::pair<int64_t, int64_t> idle_formula(const PipelineOptions& o) {
  const int64_t fill = o.shape.ranks - 1;
  const int64_t missing = std::max<int64_t>(0, o.shape.ranks - o.inputs);
  const int64_t waits = fill + (o.shape.stages_per_rank - 1) * missing;
  switch (o.schedule) {
    case Schedule::kForwardOnly:
      return o.shape.order == StageOrder::kVee ? std::pair(2 * fill, 2 * fill)
                                               : std::pair(waits, waits);
    case Schedule::kZeroBubble:
      if (o.shape.stages_per_rank == 1) {
        return {fill + missing, fill + missing};
      }
      return missing == 0 ? std::pair(fill, fill) : std::pair(fill + missing, 3 * waits);
    case Schedule::kZeroBubbleV:
      return o.inputs >= 2 * o.shape.ranks - 1 ? std::pair(fill, fill)
                                               : std::pair(fill, 3 * (fill + missing));
    default:
      return {3 * waits, 3 * waits};
  }
}

// Receive right before use, send right after: each rank's runs in the plan's order.
RankEvents naive_events(const PipelinePlan& plan, const PipelineShape& shape) {
  RankEvents events(plan.ranks());
  for (int64_t rank = 0; rank < plan.ranks(); ++rank) {
    for (const PipelineEvent& event : plan.events(rank)) {
      const StageRun* run = std::get_if<StageRun>(&event);
      if (run == nullptr) {
        continue;
      }
      const auto transfer = [&](int64_t from, int64_t to) {
        if (std::min(from, to) >= 0 && std::max(from, to) < shape.stages() &&
            shape.rank_of(from) != shape.rank_of(to)) {
          events[rank].push_back(StageTransfer{from, to, run->input});
        }
      };
      const bool travels = run->kind != PassKind::kWeightGradient;
      const int64_t way = run->kind == PassKind::kForward ? 1 : -1;
      if (travels) {
        transfer(run->stage - way, run->stage);
      }
      events[rank].push_back(*run);
      if (travels) {
        transfer(run->stage, run->stage + way);
      }
    }
  }
  return events;
}

bool names(const std::vector<std::string>& faults, const std::string& text) {
  return std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
    return fault.find(text) != std::string::npos;
  });
}

std::size_t place_of(const std::vector<PipelineEvent>& events, const PipelineEvent& event) {
  const auto found = std::find(events.begin(), events.end(), event);
  REQUIRE(found != events.end());
  return found - events.begin();
}

TEST_CASE("two ranks and three inputs in 1F1B, event by event") {
  const PipelinePlan plan = plan_pipeline({{2, 1}, Schedule::kOneForwardOneBackward, 3});
  const auto forward = [](int64_t stage, int64_t i) {
    return PipelineEvent(StageRun{PassKind::kForward, stage, i});
  };
  const auto backward = [](int64_t stage, int64_t i) {
    return PipelineEvent(StageRun{PassKind::kBackward, stage, i});
  };
  const auto hidden = [](int64_t i) { return PipelineEvent(StageTransfer{0, 1, i}); };
  const auto gradient = [](int64_t i) { return PipelineEvent(StageTransfer{1, 0, i}); };
  const std::vector<PipelineEvent> first = {
      forward(0, 0), hidden(0), forward(0, 1), hidden(1),      gradient(0), backward(0, 0),
      forward(0, 2), hidden(2), gradient(1),   backward(0, 1), gradient(2), backward(0, 2)};
  // Runs that end together are in the order of ranks, so a receive may be long before its use.
  const std::vector<PipelineEvent> second = {
      hidden(0), hidden(1),      forward(1, 0), backward(1, 0), gradient(0),    forward(1, 1),
      hidden(2), backward(1, 1), gradient(1),   forward(1, 2),  backward(1, 2), gradient(2)};
  const RankEvents events = events_of(plan);
  CHECK((events[0] == first));
  CHECK((events[1] == second));
  CHECK(plan.span() == 3 * 3 + 3);
}

TEST_CASE(
    "every schedule runs all passes without buffers, as long and with as many live inputs "
    "as its formula") {
  for_each_pipeline(up_to(40), [](const PipelineOptions& options) {
    const PipelinePlan plan = plan_pipeline(options);
    const std::vector<std::string> faults = faults_of(plan, options);
    if (!faults.empty()) {
      FAIL(text_of(options) << ": " << faults.front());
    }
    const bool by_formula =
        options.schedule != Schedule::kZeroBubble && options.schedule != Schedule::kZeroBubbleV;
    const auto [least, most] = idle_formula(options);
    for (int64_t rank = 0; rank < options.shape.ranks; ++rank) {
      const int64_t idle = plan.idle(rank), live = plan.most_live(rank);
      const int64_t own = own_live(options, rank);
      if (idle < least || idle > most || (by_formula ? live != own : live > own)) {
        FAIL(text_of(options) << ", rank " << rank << ": idle " << idle << ", expected " << least
                              << " to " << most << "; live " << live << ", expected " << own);
      }
    }
  });
  SUCCEED();
}

TEST_CASE("a zero bubble holds P inputs on every rank, and a V two halves of each") {
  for (const int64_t ranks : {2, 4, 8}) {
    const PipelinePlan plan = plan_pipeline({{ranks, 1}, Schedule::kZeroBubble, 2 * ranks});
    const PipelinePlan vee = plan_pipeline(in_vee(Schedule::kZeroBubbleV, ranks, 2 * ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      CHECK(plan.most_live(rank) == ranks);
      CHECK(vee.most_live(rank) == 2 * ranks);
    }
  }
}

TEST_CASE("receiving right before use stops where passes alternate, and nowhere else") {
  for_each_pipeline({1, 2, 5, 8}, [](const PipelineOptions& options) {
    const RankEvents naive = naive_events(plan_pipeline(options), options.shape);
    const bool alternates =
        options.schedule != Schedule::kForwardOnly && options.schedule != Schedule::kGpipe;
    const std::vector<std::string> faults = faults_of(naive, options);
    INFO(text_of(options));
    if (options.shape.ranks == 1) {
      CHECK(faults.empty());
    } else if (options.shape.stages_per_rank == 1) {
      CHECK(names(faults, "waits for ever") == (alternates && options.inputs > 1));
    } else if (alternates && options.inputs > options.shape.ranks) {
      CHECK(names(faults, "waits for ever"));
    }
  });
}

TEST_CASE("a rank alone runs each input's backward after its forward and sends nothing") {
  const PipelinePlan plan = plan_pipeline({{1, 1}, Schedule::kOneForwardOneBackward, 3});
  std::vector<PipelineEvent> expected;
  for (int64_t i = 0; i < 3; ++i) {
    expected.push_back(StageRun{PassKind::kForward, 0, i});
    expected.push_back(StageRun{PassKind::kBackward, 0, i});
  }
  CHECK((events_of(plan)[0] == expected));
}

TEST_CASE("the stages of a V go to the ranks and back") {
  const PipelineShape vee{3, 2, StageOrder::kVee}, loop{3, 2};
  const int64_t vee_ranks[] = {0, 1, 2, 2, 1, 0}, loop_ranks[] = {0, 1, 2, 0, 1, 2};
  for (int64_t stage = 0; stage < 6; ++stage) {
    CHECK(vee.rank_of(stage) == vee_ranks[stage]);
    CHECK(loop.rank_of(stage) == loop_ranks[stage]);
    CHECK(vee.stage_of(vee.rank_of(stage), stage / 3) == stage);
    CHECK(loop.stage_of(loop.rank_of(stage), stage / 3) == stage);
  }
  // The turn of the V is on one rank.
  for (const PipelineEvent& event : plan_pipeline(in_vee(Schedule::kZeroBubbleV, 3, 4)).events(2)) {
    const StageTransfer* transfer = std::get_if<StageTransfer>(&event);
    CHECK((transfer == nullptr || std::min(transfer->from_stage, transfer->to_stage) != 2));
  }
}

TEST_CASE("planted faults of a plan are named") {
  const PipelineOptions options{{3, 1}, Schedule::kZeroBubble, 5};
  const RankEvents good = events_of(plan_pipeline(options));
  REQUIRE(faults_of(good, options).empty());
  RankEvents bad = good;
  const PipelineEvent arrival = StageTransfer{0, 1, 2};

  SECTION("a transfer is missing on one rank") {
    bad[1].erase(bad[1].begin() + place_of(bad[1], arrival));
    CHECK(names(faults_of(bad, options), "waits for ever at the transfer of input 2"));
  }
  SECTION("a transfer is missing on both ranks") {
    bad[0].erase(bad[0].begin() + place_of(bad[0], arrival));
    bad[1].erase(bad[1].begin() + place_of(bad[1], arrival));
    CHECK(names(faults_of(bad, options),
                "rank 1: forward of input 2 on stage 1 is before the forward of input 2 on stage "
                "0 has arrived"));
  }
  SECTION("two transfers are swapped on one rank") {
    std::swap(bad[1][place_of(bad[1], arrival)], bad[1][place_of(bad[1], StageTransfer{0, 1, 3})]);
    CHECK(names(faults_of(bad, options), "waits for ever"));
  }
  SECTION("another input is sent") {
    bad[0][place_of(bad[0], arrival)] = StageTransfer{0, 1, 3};
    CHECK(names(faults_of(bad, options), "waits for ever"));
  }
  SECTION("a transfer is before its content, on both ranks") {
    for (const int rank : {0, 1}) {
      bad[rank].erase(bad[rank].begin() + place_of(bad[rank], arrival));
      bad[rank].insert(bad[rank].begin(), arrival);
    }
    CHECK(names(faults_of(bad, options), "is before its content is made"));
  }
  SECTION("a transfer is twice, on both ranks") {
    for (const int rank : {0, 1}) {
      bad[rank].insert(bad[rank].begin() + place_of(bad[rank], arrival), arrival);
    }
    CHECK(names(faults_of(bad, options), "transfer of input 2 from stage 0 to stage 1 is twice"));
  }
  SECTION("a transfer is one of other ranks, or of none") {
    for (const StageTransfer& foreign :
         {StageTransfer{0, 1, 0}, {0, 2, 0}, {2, 3, 0}, {1, 2, 5}, {1, 1, 0}}) {
      bad[2].insert(bad[2].begin(), foreign);
    }
    CHECK(faults_of(bad, options).size() == 5);
  }
  SECTION("a run is missing, and is twice") {
    const PipelineEvent last = StageRun{PassKind::kWeightGradient, 2, 4};
    const std::size_t place = place_of(bad[2], last);
    bad[2].push_back(bad[2][place]);
    CHECK(names(faults_of(bad, options), "weight gradient of input 4 on stage 2 is twice"));
    bad[2] = good[2];
    bad[2].erase(bad[2].begin() + place);
    CHECK(faults_of(bad, options) ==
          std::vector<std::string>{"rank 2: weight gradient of input 4 on stage 2 is missing"});
  }
  SECTION("a run is of another rank") {
    bad[0].insert(bad[0].begin(), StageRun{PassKind::kForward, 1, 0});
    CHECK(
        names(faults_of(bad, options), "rank 0: forward of input 0 on stage 1 is not one of its"));
  }
  SECTION("a weight gradient is before its input gradient") {
    std::swap(bad[1][place_of(bad[1], StageRun{PassKind::kWeightGradient, 1, 0})],
              bad[1][place_of(bad[1], StageRun{PassKind::kInputGradient, 1, 0})]);
    CHECK(names(faults_of(bad, options), "weight gradient of input 0 on stage 1 is before"));
  }
  SECTION("inputs are out of order") {
    std::swap(bad[2][place_of(bad[2], StageRun{PassKind::kWeightGradient, 2, 0})],
              bad[2][place_of(bad[2], StageRun{PassKind::kWeightGradient, 2, 1})]);
    CHECK(names(faults_of(bad, options), "of input 0 on stage 2 is out of order"));
  }
  SECTION("a whole backward is among split ones") {
    bad[0][place_of(bad[0], StageRun{PassKind::kInputGradient, 0, 4})] =
        StageRun{PassKind::kBackward, 0, 4};
    CHECK(faults_of(bad, options) ==
          std::vector<std::string>{"backwards are both whole and in parts"});
  }
  SECTION("more inputs are live than allowed") {
    PipelineOptions bounded = options;
    bounded.most_live = 2;
    CHECK(names(faults_of(good, bounded), "makes 3 live inputs; most_live is 2"));
  }
  SECTION("a rank has no list") {
    bad.pop_back();
    CHECK_THROWS_AS(faults_of(bad, options), std::invalid_argument);
  }
}

TEST_CASE("plans of all ranks have one hash, and every option that changes the order changes it") {
  std::set<uint64_t> hashes;
  std::size_t plans = 0;
  const auto add = [&](const PipelineOptions& options) {
    // Each rank makes the plan by itself.
    const uint64_t hash = plan_pipeline(options).hash();
    for (int64_t rank = 1; rank < options.shape.ranks; ++rank) {
      CHECK(plan_pipeline(options).hash() == hash);
    }
    hashes.insert(hash);
    ++plans;
  };
  for (const int64_t ranks : {2, 3}) {
    for (const int64_t m : {4, 5}) {
      add({{ranks, 1}, Schedule::kForwardOnly, m});
      add({{ranks, 2}, Schedule::kForwardOnly, m});
      add({{ranks, 1}, Schedule::kGpipe, m});
      add({{ranks, 1}, Schedule::kOneForwardOneBackward, m});
      add({{ranks, 1}, Schedule::kOneForwardOneBackward, m, 1});
      add({{ranks, 2}, Schedule::kInterleaved, m});
      add({{ranks, 1}, Schedule::kZeroBubble, m});
      add(in_vee(Schedule::kZeroBubbleV, ranks, m));
      add({{ranks, 1}, Schedule::kOneForwardOneBackward, m, 0, 1});
    }
  }
  CHECK(hashes.size() == plans);
}

TEST_CASE("the hash is over every number of the order") {
  using Order = std::vector<PipelineEvent>;
  std::set<uint64_t> hashes;
  const auto add = [&](const Order& order, std::size_t ranks = 2) {
    hashes.insert(PipelinePlan(order, std::vector<PipelinePlan::RankPart>(ranks), 0).hash());
  };
  const StageRun run{PassKind::kForward, 0, 0};
  const StageTransfer transfer{0, 1, 0};
  add({run, transfer});
  add({transfer, run});
  add({run, transfer}, 3);
  add({StageRun{PassKind::kBackward, 0, 0}, transfer});
  add({StageRun{PassKind::kForward, 1, 0}, transfer});
  add({StageRun{PassKind::kForward, 0, 1}, transfer});
  add({run, StageTransfer{1, 1, 0}});
  add({run, StageTransfer{0, 2, 0}});
  add({run, StageTransfer{0, 1, 1}});
  CHECK(hashes.size() == 9);
}

TEST_CASE("a bound on live inputs holds, and a larger one never makes a longer pass") {
  for (const int64_t ranks : {2, 3, 4, 6}) {
    for (const int64_t m : {3, 9}) {
      for (PipelineOptions options :
           {PipelineOptions{{ranks, 1}, Schedule::kOneForwardOneBackward, m},
            PipelineOptions{{ranks, 2}, Schedule::kInterleaved, m},
            PipelineOptions{{ranks, 1}, Schedule::kZeroBubble, m},
            PipelineOptions{{ranks, 3}, Schedule::kZeroBubble, m},
            in_vee(Schedule::kZeroBubbleV, ranks, m)}) {
        const int64_t least = options.shape.stages_per_rank;
        int64_t span = plan_pipeline(options).span() * 100;
        for (options.most_live = least; options.most_live <= 2 * least * ranks;
             ++options.most_live) {
          INFO(text_of(options));
          const PipelinePlan plan = plan_pipeline(options);
          CHECK(faults_of(plan, options) == std::vector<std::string>{});
          CHECK(plan.span() <= span);
          span = plan.span();
        }
        PipelineOptions unbounded = options;
        unbounded.most_live = 0;
        CHECK(span <= plan_pipeline(unbounded).span());
      }
    }
  }
}

TEST_CASE("bounds below what any order needs are refused, as are shapes a schedule lacks") {
  const auto refused = [](const PipelineOptions& options, const char* what) {
    CHECK_THROWS_WITH(plan_pipeline(options), Catch::Contains(what));
    CHECK_THROWS_AS(plan_pipeline(options), std::invalid_argument);
  };
  refused({{4, 2}, Schedule::kInterleaved, 8, 0, 1}, "live on all 2 stages of a rank");
  refused(in_vee(Schedule::kZeroBubbleV, 4, 8, 1), "most_live is 1");
  refused({{4, 2}, Schedule::kGpipe, 8, 0, 15}, "gpipe holds all 16 stage inputs");
  refused({{4, 1}, Schedule::kGpipe, 8, 0, -1}, "most_live must be at least 0, got -1");
  refused({{4, 2}, Schedule::kOneForwardOneBackward, 8}, "1f1b has one stage a rank, got 2");
  refused({{4, 2}, Schedule::kZeroBubbleV, 8}, "zero_bubble_v needs stages in a V");
  refused(in_vee(Schedule::kInterleaved, 4, 8), "stages in a V are for zero_bubble_v");
  refused({{4, 3, StageOrder::kVee}, Schedule::kForwardOnly, 8}, "a V has 2 stages a rank, got 3");
  refused({{4, 1}, Schedule::kZeroBubble, 8, 1}, "warm_up is for 1f1b and interleaved");
  refused({{0, 1}, Schedule::kGpipe, 8}, "ranks must be at least 1, got 0");
  refused({{2, 0}, Schedule::kGpipe, 8}, "stages of a rank must be at least 1, got 0");
  refused({{2, 1}, Schedule::kGpipe, 0}, "inputs must be at least 1, got 0");
  PipelineOptions costs{{2, 1}, Schedule::kGpipe, 3};
  costs.stage_cost.resize(3);
  refused(costs, "3 costs for 2 stages");
  costs.stage_cost = {{1, 1, 1}, {1, 0, 1}};
  refused(costs, "a cost must be 1 to 2^31, got 0");
  costs.stage_cost.clear();
  costs.input_cost = {1, 2};
  refused(costs, "2 costs for 3 inputs");
  costs.input_cost.assign(3, int64_t{1} << 31);
  costs.stage_cost.assign(2, {int64_t{1} << 31, int64_t{1} << 31, int64_t{1} << 31});
  refused(costs, "overflows");
}

// Costs of inputs with the given spread around 1000, the same on every machine.
std::vector<int64_t> unequal_inputs(int64_t inputs, double spread, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> costs;
  for (int64_t i = 0; i < inputs; ++i) {
    const double uniform = static_cast<double>(random()) / 4294967296.0;
    costs.push_back(static_cast<int64_t>(1000.0 * (1.0 + spread * (2.0 * uniform - 1.0))));
  }
  return costs;
}

TEST_CASE("inputs and stages of unequal cost make plans without faults in every schedule") {
  unsigned seed = 0;
  for_each_pipeline({1, 3, 10}, [&](PipelineOptions options) {
    options.input_cost = unequal_inputs(options.inputs, 0.9, ++seed);
    for (int64_t stage = 0; stage < options.shape.stages(); ++stage) {
      options.stage_cost.push_back({3 + stage % 2, 3, 1 + stage % 3});
    }
    options.stage_cost.back().forward = 9;  // the head's
    const PipelinePlan plan = plan_pipeline(options);
    INFO(text_of(options));
    CHECK(faults_of(plan, options) == std::vector<std::string>{});
    CHECK(replayed_span(plan, options, 0) == plan.span());
    int64_t work = 0;
    for (const PipelineEvent& event : plan.events(0)) {
      const StageRun* run = std::get_if<StageRun>(&event);
      work += run == nullptr ? 0 : options.cost_of(*run);
    }
    CHECK(plan.idle(0) == plan.span() - work);
  });
}

// Time of a pass over that of a rank's work, with a transfer of 5 % of a forward; mean of draws.
double relative_span(PipelineOptions options, double spread, bool longest_first) {
  double sum = 0.0;
  constexpr int kDraws = 10;
  for (unsigned seed = 0; seed < kDraws; ++seed) {
    PipelineOptions actual = options;
    actual.input_cost = unequal_inputs(options.inputs, spread, seed);
    if (longest_first) {
      std::sort(actual.input_cost.begin(), actual.input_cost.end(), std::greater<>());
    }
    int64_t work = 0;
    for (const int64_t cost : actual.input_cost) {
      work += 3 * cost;
    }
    sum += static_cast<double>(replayed_span(plan_pipeline(options), actual, 50)) /
           static_cast<double>(work);
  }
  return sum / kDraws;
}

TEST_CASE("unequal inputs cost 1F1B the most; their order, warm-up and split backwards help") {
  const PipelineOptions plain{{4, 1}, Schedule::kOneForwardOneBackward, 32};
  PipelineOptions warm = plain, split = plain;
  warm.warm_up = 3;
  split.schedule = Schedule::kZeroBubble;
  const double equal = relative_span(plain, 0.0, false);
  const double random = relative_span(plain, 0.5, false);
  const double longest_first = relative_span(plain, 0.5, true);
  CHECK(random > equal + 0.05);
  CHECK(longest_first < random - 0.05);
  CHECK(relative_span(warm, 0.5, false) < random - 0.05);
  CHECK(relative_span(warm, 0.5, true) < longest_first);
  CHECK(relative_span(split, 0.5, false) < random - 0.1);
  CHECK(relative_span(split, 0.5, true) < longest_first);
  CHECK(relative_span(warm, 0.0, false) <= equal);
}

TEST_CASE("the inputs of each stage at a backward add up to what its rank holds") {
  for_each_pipeline({1, 3, 8}, [](const PipelineOptions& o) {
    CAPTURE(text_of(o));
    const PipelinePlan plan = plan_pipeline(o);
    const bool splits = o.schedule == Schedule::kZeroBubble || o.schedule == Schedule::kZeroBubbleV;
    for (int64_t rank = 0; rank < o.shape.ranks; ++rank) {
      const std::vector<HeldInputs> moments = held_at_backwards(plan, o.shape, rank);
      CHECK(moments.empty() == (o.schedule == Schedule::kForwardOnly));
      int64_t most = 0;
      bool runs_what_it_holds = true;
      for (const HeldInputs& moment : moments) {
        most = std::max(
            most, std::accumulate(moment.of_stages.begin(), moment.of_stages.end(), int64_t{0}));
        runs_what_it_holds = runs_what_it_holds && moment.of_stages.at(moment.runs) > 0 &&
                             (moment.split.at(moment.runs) > 0) == splits &&
                             std::ranges::equal(moment.split, moment.of_stages, std::less_equal());
      }
      CHECK(runs_what_it_holds);
      CHECK((moments.empty() || most == plan.most_live(rank)));
    }
  });
  // Interleaved, the first of two ranks: of its two stages the later one runs backwards first, and
  // holds fewer inputs.
  const PipelineOptions two{{2, 2}, Schedule::kInterleaved, 4};
  const std::vector<HeldInputs> moments = held_at_backwards(plan_pipeline(two), two.shape, 0);
  REQUIRE(!moments.empty());
  CHECK(moments.front().runs == 1);
  CHECK(moments.front().of_stages[0] > moments.front().of_stages[1]);
}

TEST_CASE("a transfer's time is between its run and the run that needs it, once a direction") {
  // One input: forward, three transfers and runs there, three back.
  const PipelineOptions one{{4, 1}, Schedule::kOneForwardOneBackward, 1};
  CHECK(replayed_span(plan_pipeline(one), one, 0) == 4 * 3);
  CHECK(replayed_span(plan_pipeline(one), one, 7) == 4 * 3 + 2 * 3 * 7);
  // Transfers longer than the runs: each of a direction waits for the one before.
  const PipelineOptions forwards{{2, 1}, Schedule::kForwardOnly, 5};
  CHECK(replayed_span(plan_pipeline(forwards), forwards, 10) == 1 + 5 * 10 + 1);
}

}  // namespace
