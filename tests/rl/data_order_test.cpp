// Guards the order of the data: an item seen twice in a pass, or an order that another seed or a visit before would change.
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
