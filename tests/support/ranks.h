// Runs a function once per rank, each rank a thread with its own groups: the fast form of a
// multi-process test. The groups are Gloo's, over one shared store, or in shared memory. more: axes
// of further groups; by default fully_sharded_axes(). The first exception of any rank is rethrown
// in the caller after all have ended.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "sp/mesh/process_groups.h"
#include "tests/support/memory_groups.h"

namespace ringside::test {

// c10d's flight recorder keeps one unlocked map for the whole process: several groups in several
// threads corrupt it. It reads this variable when the first group is made.
inline const int kFlightRecorderOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// Axes of the groups of a model that is sharded over all ranks of a replica.
inline std::vector<sp::Axes> fully_sharded_axes() {
  return {sp::axes::fsdp(sp::CpFsdpMode::kAll), sp::axes::without_fsdp(sp::CpFsdpMode::kAll)};
}

using RankBody = std::function<void(const sp::Mesh&, const sp::ProcessGroups&)>;

// Runs rank(r) once for each rank, in threads of one CPU thread each. on_error: called when a rank
// has failed.
// Blocks: until all have ended.
// Throws: the first exception of a rank.
inline void run_threads(int64_t world_size, const std::function<void(int64_t)>& rank_body,
                        const std::function<void()>& on_error) {
  std::mutex mutex;
  std::exception_ptr first_error;  // others may only have lost their partner
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        rank_body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        first_error = first_error ? first_error : std::current_exception();
        on_error();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_error) {
    std::rethrow_exception(first_error);
  }
}

// Runs `body` once for each rank of the mesh, connected by Gloo on loopback, or by the transport.
// Blocks: until all have ended; a collective at most `collective_timeout`.
// Throws: the first exception of a rank.
inline void run_ranks(sp::MeshShape shape, const RankBody& body,
                      std::chrono::milliseconds collective_timeout = std::chrono::seconds(30),
                      const std::vector<sp::Axes>& more = fully_sharded_axes(),
                      sp::RankTransport transport = sp::RankTransport::kGloo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(
      shape.world_size(),
      [&](int64_t rank) {
        const sp::Mesh mesh(shape, rank);
        const auto comms =
            sp::connect_groups(mesh, {store, "127.0.0.1", collective_timeout, transport}, more);
        body(mesh, comms);
      },
      [] {});
}

// run_ranks() over shared memory in place of Gloo: for grids of many small steps. A collective
// waits at most 60 s.
inline void run_ranks_in_memory(sp::MeshShape shape, const RankBody& body,
                                const std::vector<sp::Axes>& more = fully_sharded_axes()) {
  const auto hub = std::make_shared<MemoryHub>(std::chrono::seconds(60));
  run_threads(
      shape.world_size(),
      [&](int64_t rank) {
        const sp::Mesh mesh(shape, rank);
        body(mesh, memory_groups(mesh, hub, more));
      },
      [&] { hub->fail(); });
}

}  // namespace ringside::test
