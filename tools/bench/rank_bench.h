// Ranks as threads of this process, connected as the product connects them, for benchmarks.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "sp/mesh/process_groups.h"

namespace ringside::bench {

// The ranks of one layout, kept over all repetitions; run() measures one of them.
class RankBench {
 public:
  using Clock = std::chrono::steady_clock;
  using Body = std::function<void()>;
  // Called once on each rank; returns what a repetition runs.
  using Setup = std::function<Body(const sp::Mesh&, const sp::ProcessGroups&)>;

  // threads: of all ranks together. more: axes of further groups.
  RankBench(const sp::MeshShape& shape, int threads, const Setup& setup,
            const std::vector<sp::Axes>& more = {},
            sp::RankTransport transport = sp::RankTransport::kAuto)
      : size_(shape.world_size()), ends_(size_), bytes_(size_), start_(size_ + 1), end_(size_ + 1) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    for (int64_t rank = 0; rank < size_; ++rank) {
      threads_.emplace_back([this, shape, store, threads, setup, more, transport, rank] {
        at::set_num_threads(std::max(1, threads / static_cast<int>(size_)));
        serve(shape, store, setup, more, transport, rank);
      });
    }
  }

  ~RankBench() {
    stop_ = true;
    start_.arrive_and_wait();
  }

  // Seconds until the slowest rank is done.
  // Blocks: until every rank has set up and done it.
  double run() {
    const auto begin = Clock::now();
    start_.arrive_and_wait();
    end_.arrive_and_wait();
    return std::chrono::duration<double>(*std::max_element(ends_.begin(), ends_.end()) - begin)
        .count();
  }

  // Bytes that the busiest rank sent in the ring and Ulysses groups in the last repetition.
  int64_t bytes() const { return *std::max_element(bytes_.begin(), bytes_.end()); }

 private:
  void serve(const sp::MeshShape& shape, const c10::intrusive_ptr<c10d::Store>& store,
             const Setup& setup, const std::vector<sp::Axes>& more, sp::RankTransport transport,
             int64_t rank) {
    const sp::Mesh mesh(shape, rank);
    const auto groups =
        size_ == 1 ? sp::single_rank_groups()
                   : sp::connect_groups(
                         mesh, {store, "127.0.0.1", std::chrono::seconds(60), transport}, more);
    const Body body = setup(mesh, groups);
    for (;;) {
      start_.arrive_and_wait();
      if (stop_) {
        return;
      }
      const auto attention = {groups.tensors(sp::axes::kUlysses), groups.tensors(sp::axes::kRing)};
      for (const auto& group : attention) {
        group->reset_counters();
      }
      body();
      ends_[rank] = Clock::now();
      bytes_[rank] = 0;
      for (const auto& group : attention) {
        for (const auto& [tag, sent] : group->sent_bytes()) {
          bytes_[rank] += sent;
        }
      }
      end_.arrive_and_wait();
    }
  }

  int64_t size_;
  std::vector<Clock::time_point> ends_;
  std::vector<int64_t> bytes_;
  bool stop_ = false;
  std::barrier<> start_;
  std::barrier<> end_;
  std::vector<std::jthread> threads_;
};

// The middle value; of an even number the upper one. At least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace ringside::bench
