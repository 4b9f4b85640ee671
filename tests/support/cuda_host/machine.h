// An execution model of CUDA kernels on the host. A launch runs its blocks one after another, and
// the threads of a block as fibers of the calling thread, each until it waits for others. Every
// load and store of a kernel is checked (memory.h); what is wrong becomes a Report (reports.h).
//
// The model: threads of a block are ordered by barriers of the block; lanes of a warp also by
// __syncwarp, not by shuffles or votes. Lanes do not run in lockstep. Blocks of one launch are not
// ordered. Launches are ordered, whatever their stream.
//
// Thread safety: one thread of the host at a time launches kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ringside::cuda_host {

// Where the running thread is: the built-in variables.
struct Place {
  uint3 thread{};
  uint3 block{};
  dim3 block_size;
  dim3 grid_size;
};
extern Place place;

// In which order blocks and threads run. A kernel's results must not depend on it.
enum class Order { kForward, kBackward };
void set_order(Order order);

struct LaunchShape {
  const char* kernel = "";
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

// A kernel with its arguments, which lie at `arguments`.
struct Body {
  // Calls the kernel with copies of the arguments.
  void (*call)(const void* arguments);
  const void* arguments;
  std::size_t bytes;
};

// Runs the kernel in all threads of the grid. After a fault with which no thread could go on, it
// stops where it is and cudaGetLastError() returns cudaErrorLaunchFailure.
void run(const LaunchShape& shape, const Body& body);

// What a kernel calls. -------------------------------------------------------

enum class Count { kNone, kCount, kAll, kAny };
// Waits until all threads of the block wait here. Returns what the count says of the predicates.
int wait_for_block(Count count, int predicate);

enum class Exchange { kBarrier, kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot };
// What a lane brings to the other lanes of its warp.
struct LaneCall {
  Exchange exchange = Exchange::kBarrier;
  unsigned mask = 0xffffffff;
  uint64_t bits = 0;  // its value, or its predicate
  int argument = 0;   // of a shuffle
  int width = 32;
};
// Waits until all lanes of the mask wait here; returns the bits for this lane.
uint64_t wait_for_lanes(const LaneCall& call);

// An array of the running block: key names it. Its bytes are not initialised.
void* shared_memory(const void* key, std::size_t bytes, const char* name);
// What the launch asked for.
void* dynamic_shared_memory();

// The two halves of an atomic. No other thread runs between them.
uint64_t atomic_read(const void* from, std::size_t bytes);
void atomic_write(void* to, std::size_t bytes, uint64_t bits);

// Ends the launch.
[[noreturn]] void failed_assertion(const char* condition);

}  // namespace ringside::cuda_host
