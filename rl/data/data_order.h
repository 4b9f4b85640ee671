// The order in which a data set is visited: every item once a pass, a new order each pass, a
// function of the seed alone, so that a resumed run and every worker agree on it. Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ringside::rl {

class DataOrder {
 public:
  // size >= 1 items, else std::invalid_argument. Without shuffle the order is 0, 1, 2, ... each
  // pass.
  DataOrder(int64_t size, uint64_t seed, bool shuffle);

  // The item at place `position` >= 0 of the endless sequence of passes. Not thread-safe: keeps the
  // orders of a few passes, so that places far apart (rounds of refill) may alternate.
  int64_t at(int64_t position);

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  const std::vector<int64_t>& order_of(int64_t pass);

  std::deque<std::pair<int64_t, std::vector<int64_t>>>
      orders_;  // pass and its order, the latest made last
};

// A seed for one of many independent streams: splitmix64 (Steele et al. 2014) over the parts in
// order.
uint64_t mix_seed(std::initializer_list<uint64_t> parts);

}  // namespace ringside::rl
