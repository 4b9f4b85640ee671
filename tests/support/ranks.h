// Runs a function once per rank, each rank a thread with its own Gloo groups over one shared
// in-memory store: the fast form of a multi-process test. more: axes of further groups; by default
// fully_sharded_axes(). An exception of any rank is rethrown in
// the caller after all have ended.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "sp/mesh/process_groups.h"

namespace ringside::test {

// c10d's flight recorder keeps one unlocked map for the whole process: several groups in several
// threads corrupt it. It reads this variable when the first group is made.
inline const int kFlightRecorderOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// Axes of the groups of a model that is sharded over all ranks of a replica.
inline std::vector<sp::Axes> fully_sharded_axes() {
  return {sp::axes::fsdp(sp::CpFsdpMode::kAll), sp::axes::without_fsdp(sp::CpFsdpMode::kAll)};
}

inline void run_ranks(sp::MeshShape shape,
                      const std::function<void(const sp::Mesh&, const sp::ProcessGroups&)>& body,
                      std::chrono::milliseconds collective_timeout = std::chrono::seconds(30),
                      const std::vector<sp::Axes>& more = fully_sharded_axes()) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int64_t world_size = shape.world_size();
  std::vector<std::exception_ptr> errors(world_size);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        const sp::Mesh mesh(shape, rank);
        const auto comms = sp::connect_groups(mesh, store, "127.0.0.1", collective_timeout, more);
        body(mesh, comms);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace ringside::test
