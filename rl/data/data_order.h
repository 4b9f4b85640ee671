// Data order: every item once per pass, in a new order each pass. It is a function of the seed
// alone, so a resumed run and every worker compute the same order. Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ringside::rl {

// Items that stand together, and how often they are used beside other parts.
struct OrderPart {
  int64_t size = 0;
  double weight = 0.0;  // 0: no part has a weight, and each item is used equally often
};

// Order of the items of one part.
class PassOrder {
 public:
  // size: items, at least 1. cached_passes: orders kept in memory.
  // Throws: std::invalid_argument for size below 1.
  PassOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes);
  // The item at `position` >= 0 of the endless sequence of passes.
  // Thread safety: none.
  int64_t at(int64_t position);

 private:
  const std::vector<int64_t>& order_of(int64_t pass);

  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  int64_t cached_passes_;
  // Cached passes with their orders, the latest computed last.
  std::deque<std::pair<int64_t, std::vector<int64_t>>> orders_;
};

// With weights, each stretch of kStretch positions holds every part as often as its weight says,
// rounded, and at least once. Where in the stretch is shuffled, or spread evenly without shuffle.
// Each part goes through its own passes.
class DataOrder {
 public:
  static constexpr int64_t kStretch = 1000;

  // size: number of items, at least 1. Without shuffle the order is 0, 1, 2, ... in each pass.
  // cached_passes: orders that are kept, of 8 bytes an item each; several, so that distant
  // positions (rounds of refill) may alternate.
  // Throws: std::invalid_argument for a size below 1.
  DataOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes = 4);

  // Items of several parts, numbered through.
  // Throws: std::invalid_argument for a part with weight and without an item, for no item at all,
  // and for more than kStretch parts with weights.
  DataOrder(const std::vector<OrderPart>& parts, uint64_t seed, bool shuffle,
            int64_t cached_passes = 4);

  // The item at `position` >= 0 of the endless sequence of passes.
  // Thread safety: none.
  int64_t at(int64_t position);

 private:
  struct Part {
    PassOrder order;
    int64_t first = 0;        // index of its first item
    int64_t per_stretch = 0;  // positions of a stretch that are its own
  };
  struct Stretch {
    int64_t number = 0;
    std::vector<int32_t> part;  // of each position
    std::vector<int32_t> turn;  // how many positions before it have the same part
  };
  const Stretch& stretch_of(int64_t number);

  uint64_t seed_;
  bool shuffle_;
  int64_t cached_passes_;
  std::vector<Part> parts_;
  std::deque<Stretch> stretches_;
};

// Puts the items into a random order that depends on the seed alone (Fisher-Yates).
void shuffle_items(std::vector<int64_t>& items, uint64_t seed);

// A seed for one of many independent streams: splitmix64 over the parts in order.
// Source: Steele et al. 2014.
uint64_t mix_seed(std::initializer_list<uint64_t> parts);

}  // namespace ringside::rl
