#include "rl/data/data_order.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {

DataOrder::DataOrder(int64_t size, uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle), order_(size < 0 ? 0 : size) {
  if (size < 1) {
    throw std::invalid_argument("data order of " + std::to_string(size) + " items");
  }
  std::iota(order_.begin(), order_.end(), 0);
}

int64_t DataOrder::at(int64_t position) {
  const int64_t pass = position / size_;
  if (shuffle_ && pass != pass_) {
    pass_ = pass;
    std::iota(order_.begin(), order_.end(), 0);
    // Fisher-Yates by hand: std::shuffle may differ between standard libraries. The modulo's bias is below 2^-40.
    std::mt19937_64 rng(mix_seed({seed_, static_cast<uint64_t>(pass)}));
    for (int64_t i = size_ - 1; i > 0; --i) {
      std::swap(order_[i], order_[rng() % static_cast<uint64_t>(i + 1)]);
    }
  }
  return order_[position % size_];
}

uint64_t mix_seed(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0;
  for (const uint64_t part : parts) {
    state += part + 0x9e3779b97f4a7c15ULL;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    state = z ^ (z >> 31);
  }
  return state;
}

}  // namespace ringside::rl
