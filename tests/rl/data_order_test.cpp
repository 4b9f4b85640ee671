// Guards the order of the data: an item seen twice in a pass, or an order that another seed or a
// visit before would change.
#include "rl/data/data_order.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

using namespace ringside;

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

// Figures of the formula in rollout_bridge/PROTOCOL.md, worked out in Python from its text alone.
TEST_CASE(
    "the order and the seeds are those that PROTOCOL.md states, so that a foreign worker finds the "
    "same prompts") {
  rl::DataOrder order(10, 7, true);
  const std::vector<int64_t> expected = {5, 6, 2, 8, 4, 9, 7, 3, 1, 0,
                                         1, 0, 3, 8, 2, 6, 7, 9, 4, 5};
  for (int64_t group = 0; group < 20; ++group) {
    CHECK(order.at(group) == expected[static_cast<std::size_t>(group)]);
  }
  CHECK(order.at((int64_t{1} << 40) + 3) == 8);  // a later round of refill
  CHECK(rl::mix_seed({7, 3, 1, 0}) == 16827490657636577538ULL);
}
