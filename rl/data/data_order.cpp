#include "rl/data/data_order.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {

DataOrder::DataOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes)
    : size_(size), seed_(seed), shuffle_(shuffle), cached_passes_(cached_passes) {
  if (size < 1) {
    throw std::invalid_argument("data order of " + std::to_string(size) + " items");
  }
}

const std::vector<int64_t>& DataOrder::order_of(int64_t pass) {
  for (const auto& [known, order] : orders_) {
    if (known == pass) {
      return order;
    }
  }
  if (static_cast<int64_t>(orders_.size()) == cached_passes_) {
    orders_.pop_front();
  }
  std::vector<int64_t> order(size_);
  std::iota(order.begin(), order.end(), 0);
  // Fisher-Yates by hand: std::shuffle may differ between standard libraries. The modulo's bias is
  // below 2^-40.
  std::mt19937_64 rng(mix_seed({seed_, static_cast<uint64_t>(pass)}));
  for (int64_t i = size_ - 1; i > 0; --i) {
    std::swap(order[i], order[rng() % static_cast<uint64_t>(i + 1)]);
  }
  return orders_.emplace_back(pass, std::move(order)).second;
}

int64_t DataOrder::at(int64_t position) {
  return shuffle_ ? order_of(position / size_)[position % size_] : position % size_;
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
