// Virtual time: events in the order of their times, numbers drawn from a seed, and a trace of both.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace ringside::simulator {

using Time = std::chrono::steady_clock::time_point;
using Span = std::chrono::nanoseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Not before an hour: "never" is the clock's zero in the code under test.
inline constexpr Time kBegin = Time{} + std::chrono::hours(1);

class EventQueue {
 public:
  Time now() const { return now_; }
  void at(Time time, std::function<void()> action) {
    actions_.emplace(std::pair(std::max(time, now_), count_++), std::move(action));
  }
  void after(Span span, std::function<void()> action) { at(now_ + span, std::move(action)); }
  bool empty() const { return actions_.empty(); }
  // Runs the next event; its time is now() meanwhile.
  void step() {
    auto next = actions_.extract(actions_.begin());
    now_ = next.key().first;
    next.mapped()();
  }
  uint64_t steps() const { return count_ - actions_.size(); }

 private:
  Time now_ = kBegin;
  uint64_t count_ = 0;
  std::map<std::pair<Time, uint64_t>, std::function<void()>> actions_;
};

// splitmix64 (Steele et al. 2014): the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  Span between(Span low, Span high) { return Span(between(low.count(), high.count())); }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }

 private:
  uint64_t state_;
};

// What happened, on standard error when it is on.
class Trace {
 public:
  Trace(const EventQueue& events, bool on) : events_(events), on_(on) {}
  void operator()(const std::string& text) const;

 private:
  const EventQueue& events_;
  bool on_;
};

// Faults that were injected, by kind.
class FaultCounts {
 public:
  void count(const std::string& kind) {
    ++by_kind_[kind];
    ++total_;
  }
  uint64_t total() const { return total_; }
  const std::map<std::string, uint64_t>& by_kind() const { return by_kind_; }
  void add(const FaultCounts& other) {
    for (const auto& [kind, n] : other.by_kind_) {
      by_kind_[kind] += n;
    }
    total_ += other.total_;
  }

 private:
  std::map<std::string, uint64_t> by_kind_;
  uint64_t total_ = 0;
};

}  // namespace ringside::simulator
