// Guards: a step taken before its groups are whole or out of order, a rollout trained on beyond the staleness window, and
// rollouts of weights that a restart has wiped out.
#include "rl/rollout_queue.h"

#include <catch2/catch.hpp>
#include <set>

#include "rl/data/data_order.h"
#include "rl/endpoint_file.h"
#include "tests/support/temporary_directory.h"

using namespace ringside;
using rl::Admission;

namespace {

bridge::Rollout make_rollout(int64_t group, int32_t sample, int64_t version, int64_t run_epoch = 3) {
  bridge::Rollout r;
  r.group_id = group;
  r.sample_index = sample;
  r.completion_ids = {1};
  r.versions = {{version, 0, 1}};
  r.run_epoch = run_epoch;
  return r;
}

// Two groups of two a step, run epoch 3, started from version 10: step 11 is next.
rl::RolloutQueue make_queue(int64_t max_staleness) { return {{2, 2, max_staleness, 3, 10}, 11}; }

}  // namespace

TEST_CASE("a step is taken whole and in order, however its rollouts arrive") {
  auto queue = make_queue(0);
  for (const auto& [group, sample] : std::vector<std::pair<int64_t, int32_t>>{{21, 1}, {20, 1}, {21, 0}}) {
    CHECK(queue.add(make_rollout(group, sample, 10)) == Admission::kAccepted);
    CHECK_FALSE(queue.take(11).has_value());
  }
  CHECK(queue.add(make_rollout(21, 0, 10)) == Admission::kDuplicate);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kAccepted);
  const auto step = queue.take(11);
  REQUIRE(step.has_value());
  REQUIRE(step->size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK((*step)[i].group_id == 20 + static_cast<int64_t>(i / 2));
    CHECK((*step)[i].sample_index == static_cast<int32_t>(i % 2));
  }
  CHECK(queue.size() == 0);
  CHECK(queue.add(make_rollout(20, 0, 10)) == Admission::kFinished);
  CHECK_THROWS_WITH(queue.take(11), Catch::Contains("step 12 is next"));
}

TEST_CASE("the staleness window is closed on both sides") {
  auto strict = make_queue(0);
  CHECK(strict.add(make_rollout(20, 0, 9)) == Admission::kStale);
  CHECK(strict.add(make_rollout(22, 0, 11)) == Admission::kTooEarly);
  auto loose = make_queue(2);
  CHECK(loose.add(make_rollout(20, 0, 8)) == Admission::kAccepted);
  CHECK(loose.add(make_rollout(20, 1, 7)) == Admission::kStale);
  CHECK(loose.add(make_rollout(24, 0, 10)) == Admission::kAccepted);
  CHECK(loose.add(make_rollout(26, 0, 11)) == Admission::kTooEarly);
  CHECK(loose.add(make_rollout(20, 1, 11)) == Admission::kStale);  // from the future of step 11
}

TEST_CASE("one old span makes the whole rollout stale") {
  auto queue = make_queue(1);
  auto rollout = make_rollout(20, 0, 9);
  rollout.versions = {{8, 0, 1}, {10, 1, 2}};
  CHECK(queue.add(rollout) == Admission::kStale);
}

TEST_CASE("a rollout of an earlier epoch counts only if its weights still exist") {
  auto queue = make_queue(2);
  CHECK(queue.add(make_rollout(20, 0, 10, 2)) == Admission::kAccepted);  // the checkpoint's own version
  CHECK(queue.add(make_rollout(22, 0, 11, 2)) == Admission::kStale);     // version 11 was lost with the crash
  CHECK(queue.add(make_rollout(22, 0, 11, 3)) == Admission::kAccepted);  // version 11 of this start
}

TEST_CASE("data order: every item once a pass, a new order each pass, the same for the same seed") {
  rl::DataOrder order(50, 7, true), again(50, 7, true), other(50, 8, true);
  std::vector<int64_t> first, second;
  std::set<int64_t> seen;
  int64_t differing = 0;
  for (int64_t i = 0; i < 50; ++i) {
    first.push_back(order.at(i));
    seen.insert(first.back());
    differing += first.back() != other.at(i) ? 1 : 0;
  }
  CHECK(seen.size() == 50);
  CHECK(differing > 25);
  for (int64_t i = 50; i < 100; ++i) {
    second.push_back(order.at(i));
  }
  CHECK(first != second);
  CHECK(again.at(77) == second[27]);  // without visiting what came before
  CHECK(rl::DataOrder(3, 1, false).at(7) == 1);
  CHECK_THROWS_WITH(rl::DataOrder(0, 1, true), Catch::Contains("0 items"));
}

TEST_CASE("mixed seeds depend on every part and its place") {
  std::set<uint64_t> seeds;
  for (uint64_t a = 0; a < 20; ++a) {
    for (uint64_t b = 0; b < 20; ++b) {
      seeds.insert(rl::mix_seed({a, b}));
    }
  }
  CHECK(seeds.size() == 400);
}

TEST_CASE("the endpoint file is read back, absent or broken is told apart") {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "endpoint.json";
  CHECK_FALSE(rl::read_endpoint_file(path).has_value());
  rl::write_endpoint_file(path, {"tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "run", 4});
  CHECK(rl::read_endpoint_file(path)->weights_address == "tcp://127.0.0.1:2");
  CHECK(rl::read_endpoint_file(path)->run_epoch == 4);
  test::write_file(path, "{");
  CHECK_THROWS_WITH(rl::read_endpoint_file(path), Catch::Contains("endpoint.json"));
}
