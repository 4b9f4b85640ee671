// Two ranks as threads with two communicators over the same devices.
#pragma once

#include <ATen/Parallel.h>

#include <array>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/standin/streams.h"
#include "tests/support/standin/ranks.h"

namespace ringside::standin {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct TwoRankContext {
  int rank;
  BackendPtr first, second;
  std::barrier<>* both;

  at::Tensor ones(at::IntArrayRef size) const { return at::ones(size, on_device(rank)); }
  // Blocks: until the other rank has called it too, or has ended.
  void meet() const { both->arrive_and_wait(); }
};

// Runs `body` on both ranks. Returns what each rank threw, "" where it threw nothing.
inline std::array<std::string, 2> run_two_ranks(
    const std::function<void(const TwoRankContext&)>& body,
    std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
  const auto fabric = make_fabric(deadline);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::string, 2> errors;
  std::barrier<> both(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = error_of([&] {
        at::set_num_threads(1);
        const engine::RankThread thread(device(rank));
        body({rank, connect_backend(fabric, store, "first", rank, {0, 1}),
              connect_backend(fabric, store, "second", rank, {0, 1}), &both});
      });
      both.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

inline c10::intrusive_ptr<c10d::Work> all_reduce(const BackendPtr& backend, const at::Tensor& x) {
  std::vector<at::Tensor> tensors{x};
  return backend->allreduce(tensors);
}

inline c10::intrusive_ptr<c10d::Work> all_gather(const BackendPtr& backend, at::Tensor out,
                                                 at::Tensor in) {
  return backend->_allgather_base(out, in);
}

inline c10::intrusive_ptr<c10d::Work> all_to_all(const BackendPtr& backend, at::Tensor out,
                                                 at::Tensor in) {
  std::vector<int64_t> equal;
  return backend->alltoall_base(out, in, equal, equal);
}

inline c10::intrusive_ptr<c10d::Work> send(const BackendPtr& backend, const at::Tensor& x, int to) {
  std::vector<at::Tensor> tensors{x};
  return backend->send(tensors, to, 0);
}

inline c10::intrusive_ptr<c10d::Work> receive(const BackendPtr& backend, const at::Tensor& x,
                                              int from) {
  std::vector<at::Tensor> tensors{x};
  return backend->recv(tensors, from, 0);
}

}  // namespace ringside::standin
