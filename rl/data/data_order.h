// Data order: every item once per pass, in a new order each pass. It is a function of the seed
// alone, so a resumed run and every worker compute the same order. Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ringside::rl {

class DataOrder {
 public:
  // size: number of items, at least 1. Without shuffle the order is 0, 1, 2, ... in each pass.
  // cached_passes: orders that are kept, of 8 bytes an item each; several, so that distant
  // positions (rounds of refill) may alternate.
  // Throws: std::invalid_argument for a size below 1.
  DataOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes = 4);

  // The item at `position` >= 0 of the endless sequence of passes.
  // Thread safety: none.
  int64_t at(int64_t position);

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  int64_t cached_passes_;
  const std::vector<int64_t>& order_of(int64_t pass);

  // Cached passes with their orders, the latest computed last.
  std::deque<std::pair<int64_t, std::vector<int64_t>>> orders_;
};

// A seed for one of many independent streams: splitmix64 over the parts in order.
// Source: Steele et al. 2014.
uint64_t mix_seed(std::initializer_list<uint64_t> parts);

}  // namespace ringside::rl
