#include "rl/data/data_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {
namespace {

// Fisher-Yates by hand: std::shuffle may differ between standard libraries. The modulo's bias is
// below 2^-40.
template <class T>
void shuffle_by(std::vector<T>& items, uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (int64_t i = static_cast<int64_t>(items.size()) - 1; i > 0; --i) {
    std::swap(items[i], items[rng() % static_cast<uint64_t>(i + 1)]);
  }
}

// Positions of a stretch for each part: shares by largest remainder, each at least 1.
std::vector<int64_t> shares(const std::vector<OrderPart>& parts) {
  const double total =
      std::accumulate(parts.begin(), parts.end(), 0.0,
                      [](double sum, const OrderPart& p) { return sum + p.weight; });
  std::vector<int64_t> counts;
  std::vector<std::pair<double, std::size_t>> by_remainder;
  for (const OrderPart& part : parts) {
    const double exact = part.weight / total * static_cast<double>(DataOrder::kStretch);
    counts.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::floor(exact))));
    by_remainder.emplace_back(static_cast<double>(counts.back()) - exact, by_remainder.size());
  }
  std::sort(by_remainder.begin(), by_remainder.end());  // the largest remainder first
  int64_t left = DataOrder::kStretch - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (std::size_t i = 0; left > 0; i = (i + 1) % by_remainder.size(), --left) {
    ++counts[by_remainder[i].second];
  }
  for (; left < 0; ++left) {  // parts were raised to 1: the most frequent one yields
    --*std::max_element(counts.begin(), counts.end());
  }
  return counts;
}

int64_t total_size(const std::vector<OrderPart>& parts) {
  int64_t size = 0;
  for (const OrderPart& part : parts) {
    size += part.size;
  }
  return size;
}

}  // namespace

PassOrder::PassOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes)
    : size_(size), seed_(seed), shuffle_(shuffle), cached_passes_(cached_passes) {
  if (size < 1) {
    throw std::invalid_argument("data order of " + std::to_string(size) + " items");
  }
}

const std::vector<int64_t>& PassOrder::order_of(int64_t pass) {
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
  shuffle_by(order, mix_seed({seed_, static_cast<uint64_t>(pass)}));
  return orders_.emplace_back(pass, std::move(order)).second;
}

int64_t PassOrder::at(int64_t position) {
  return shuffle_ ? order_of(position / size_)[position % size_] : position % size_;
}

DataOrder::DataOrder(int64_t size, uint64_t seed, bool shuffle, int64_t cached_passes)
    : DataOrder(std::vector<OrderPart>{{size, 0.0}}, seed, shuffle, cached_passes) {}

DataOrder::DataOrder(const std::vector<OrderPart>& parts, uint64_t seed, bool shuffle,
                     int64_t cached_passes)
    : seed_(seed), shuffle_(shuffle), cached_passes_(cached_passes) {
  const bool weighted = std::any_of(parts.begin(), parts.end(),
                                    [](const OrderPart& part) { return part.weight > 0; });
  if (!weighted || parts.size() == 1) {
    parts_.push_back({PassOrder(total_size(parts), seed, shuffle, cached_passes), 0, 0});
    return;
  }
  if (static_cast<int64_t>(parts.size()) > kStretch) {
    throw std::invalid_argument(std::to_string(parts.size()) +
                                " data files have weights, expected at most " +
                                std::to_string(kStretch));
  }
  const auto counts = shares(parts);
  int64_t first = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const uint64_t part_seed = mix_seed({seed, 0x7061727473u, static_cast<uint64_t>(i)});
    parts_.push_back(
        {PassOrder(parts[i].size, part_seed, shuffle, cached_passes), first, counts[i]});
    first += parts[i].size;
  }
}

const DataOrder::Stretch& DataOrder::stretch_of(int64_t number) {
  for (const Stretch& known : stretches_) {
    if (known.number == number) {
      return known;
    }
  }
  if (static_cast<int64_t>(stretches_.size()) == cached_passes_) {
    stretches_.pop_front();
  }
  Stretch stretch{number, {}, {}};
  if (shuffle_) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      stretch.part.insert(stretch.part.end(), static_cast<std::size_t>(parts_[i].per_stretch),
                          static_cast<int32_t>(i));
    }
    shuffle_by(stretch.part, mix_seed({seed_, 0x6d6978u, static_cast<uint64_t>(number)}));
  } else {
    // The part that is furthest behind its share is next.
    std::vector<int64_t> used(parts_.size(), 0);
    for (int64_t at = 0; at < kStretch; ++at) {
      const auto behind = [&](std::size_t i) {
        return used[i] == parts_[i].per_stretch
                   ? -kStretch * kStretch
                   : parts_[i].per_stretch * (at + 1) - used[i] * kStretch;
      };
      std::size_t next = 0;
      for (std::size_t i = 1; i < parts_.size(); ++i) {
        next = behind(i) > behind(next) ? i : next;
      }
      ++used[next];
      stretch.part.push_back(static_cast<int32_t>(next));
    }
  }
  std::vector<int32_t> seen(parts_.size(), 0);
  for (const int32_t part : stretch.part) {
    stretch.turn.push_back(seen[static_cast<std::size_t>(part)]++);
  }
  return stretches_.emplace_back(std::move(stretch));
}

int64_t DataOrder::at(int64_t position) {
  if (parts_.size() == 1) {
    return parts_.front().order.at(position);
  }
  const int64_t number = position / kStretch;
  const Stretch& stretch = stretch_of(number);
  const auto at = static_cast<std::size_t>(position % kStretch);
  Part& part = parts_[static_cast<std::size_t>(stretch.part[at])];
  return part.first +
         part.order.at(number * part.per_stretch + static_cast<int64_t>(stretch.turn[at]));
}

void shuffle_items(std::vector<int64_t>& items, uint64_t seed) { shuffle_by(items, seed); }

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
