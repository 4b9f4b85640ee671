// The state of a launch, for the parts of the execution model.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_host/call_tree.h"
#include "tests/support/cuda_host/fiber.h"
#include "tests/support/cuda_host/machine.h"
#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/reports.h"

namespace ringside::cuda_host {

enum class State { kReady, kAtBlockBarrier, kAtLanes, kDone };

// A thread of the running block.
struct Thread {
  // The thread of this number in every block.
  explicit Thread(uint32_t number);

  uint32_t number;
  uint3 index{};
  State state = State::kDone;
  uint32_t call = 0;  // where it is, of the call tree
  std::array<uint32_t, kLanes> followed{};
  LaneCall brought;   // while it waits for lanes
  int predicate = 0;  // while it waits for the block
  Count count = Count::kNone;
  uint64_t received = 0;  // what it waited for
  Fiber fiber;

  uint32_t lane() const { return number % kLanes; }
};

// Blocks, threads and shared memory of the running launch, and the barriers between them.
// Thread safety: none.
class Machine {
 public:
  // The one of the program.
  static Machine& instance();

  // As in machine.h.
  void run(const LaunchShape& shape, const Body& body);
  void set_order(Order order) { order_ = order; }
  // The error of the last launch, which is then forgotten.
  cudaError_t take_error();

  // The thread that runs, or nullptr outside kernels.
  Thread* running() { return running_; }
  CallTree& calls() { return calls_; }
  const Body& body() const { return body_; }

  // One load or store of the running thread, at an address of the code.
  void access(const Access& access);
  // The running thread waits; returns what it waited for.
  uint64_t wait(State state);
  // Reports a fault of the running thread, with which the launch cannot go on.
  [[noreturn]] void stop(Fault fault, const std::string& what);
  // The same, and the thread goes on.
  void report(Fault fault, const std::string& what, uint32_t other_call = 0);

  // An array of the block, and the memory that the launch asked for.
  void* shared(const void* key, std::size_t bytes, const std::string& name);
  void* dynamic_shared();

 private:
  struct SharedArray {
    std::unique_ptr<double[]> bytes;
    std::size_t size = 0;
    const Region* region = nullptr;
    uint32_t launch = 0;  // for which it was last used
    uint32_t block = 0;
  };

  bool accepted(const LaunchShape& shape);
  void run_block(uint32_t block);
  bool run_threads();
  bool release_lanes(std::size_t warp);
  bool release_group(std::size_t warp, const Thread& first);
  bool release_block();
  void report_of(const Thread& thread, Fault fault, const std::string& what,
                 uint32_t other_call = 0);
  void report_stuck();
  void* shared_array(SharedArray& array, std::size_t bytes, const std::string& name);

  Order order_ = Order::kForward;
  LaunchShape shape_;
  Body body_{};
  uint32_t launch_ = 0;
  uint32_t block_ = 0;
  uint32_t barrier_ = 0;
  std::size_t shared_bytes_ = 0;  // of the running block
  bool stopped_ = false;
  cudaError_t error_ = cudaSuccess;
  Thread* running_ = nullptr;
  std::vector<std::unique_ptr<Thread>> all_;  // as many as any launch had
  std::vector<Thread*> threads_;              // of this launch
  std::map<std::pair<const void*, std::size_t>, SharedArray> shared_;
  CallTree calls_;
};

}  // namespace ringside::cuda_host
