// What nvcc knows without an include, for translated .cu files on the host: qualifiers, built-in
// variables, launches, barriers, shuffles, votes and atomics. Only translated files include it.
//
// The names are CUDA's own; what they mean is in the CUDA C++ Programming Guide, "C++ Language
// Extensions". What is missing here is not used by any kernel of ours: add it when one needs it.
#pragma once

#include <c10/macros/Macros.h>
#include <cuda_runtime_api.h>
#include <math.h>

#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/cuda_host/machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::ringside::cuda_host::place.thread)
#define blockIdx (::ringside::cuda_host::place.block)
#define blockDim (::ringside::cuda_host::place.block_size)
#define gridDim (::ringside::cuda_host::place.grid_size)

#undef CUDA_KERNEL_ASSERT
#define CUDA_KERNEL_ASSERT(condition)                    \
  if (!(condition)) {                                    \
    ::ringside::cuda_host::failed_assertion(#condition); \
  }

namespace ringside::cuda_host {

// The block's array of this type at this place of the source.
template <class T, class Place>
T& shared(Place, const char* name) {
  static const char key = 0;
  return *static_cast<T*>(shared_memory(&key, sizeof(T), name));
}

// The memory that the launch asked for.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared_memory());
}

// A launch whose kernel and arguments follow.
class Launch {
 public:
  // Of this shape.
  explicit Launch(const LaunchShape& shape) : shape_(shape) {}

  // Runs the kernel. Its arguments are copied once, as a launch does, and again for each thread.
  template <class Kernel, class... Arguments>
  void operator()(Kernel, const Arguments&... arguments) const {
    const std::tuple<Arguments...> copies(arguments...);
    const auto call = [](const void* from) {
      std::apply(Kernel(), *static_cast<const std::tuple<Arguments...>*>(from));
    };
    run(shape_, {call, &copies, sizeof(copies)});
  }

 private:
  LaunchShape shape_;
};

// A launch as CUDA writes it between <<< and >>>.
inline Launch launch(const char* kernel, dim3 grid, dim3 block, std::size_t shared = 0,
                     cudaStream_t stream = nullptr) {
  return Launch({kernel, grid, block, shared});
}

// A value of at most eight bytes as bits, and back.
template <class T>
uint64_t bits_of(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// The value that bits_of() gave the bits of.
template <class T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Replaces *at by change(*at) in one step, and returns what was there.
template <class T, class Change>
T atomically(T* at, Change change) {
  const T before = value_of<T>(atomic_read(at, sizeof(T)));
  atomic_write(at, sizeof(T), bits_of<T>(change(before)));
  return before;
}

}  // namespace ringside::cuda_host

// Barriers of the block.
inline void __syncthreads() {
  ringside::cuda_host::wait_for_block(ringside::cuda_host::Count::kNone, 0);
}
// How many threads' predicates hold.
inline int __syncthreads_count(int predicate) {
  return ringside::cuda_host::wait_for_block(ringside::cuda_host::Count::kCount, predicate);
}
// Whether all do.
inline int __syncthreads_and(int predicate) {
  return ringside::cuda_host::wait_for_block(ringside::cuda_host::Count::kAll, predicate);
}
// Whether one does.
inline int __syncthreads_or(int predicate) {
  return ringside::cuda_host::wait_for_block(ringside::cuda_host::Count::kAny, predicate);
}

// Barrier of the lanes of the mask.
inline void __syncwarp(unsigned mask = 0xffffffff) {
  ringside::cuda_host::wait_for_lanes({ringside::cuda_host::Exchange::kBarrier, mask});
}

// The value of another lane of the mask, in groups of `width` lanes.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  using namespace ringside::cuda_host;
  return value_of<T>(wait_for_lanes({Exchange::kShuffle, mask, bits_of(value), source, width}));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  using namespace ringside::cuda_host;
  return value_of<T>(
      wait_for_lanes({Exchange::kShuffleUp, mask, bits_of(value), static_cast<int>(by), width}));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  using namespace ringside::cuda_host;
  return value_of<T>(
      wait_for_lanes({Exchange::kShuffleDown, mask, bits_of(value), static_cast<int>(by), width}));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  using namespace ringside::cuda_host;
  return value_of<T>(wait_for_lanes({Exchange::kShuffleXor, mask, bits_of(value), bits, width}));
}

// The lanes of the mask whose predicate holds.
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace ringside::cuda_host;
  return static_cast<unsigned>(wait_for_lanes({Exchange::kBallot, mask, predicate != 0}));
}
// Whether one of the mask's lanes says yes.
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
// Whether all of them do.
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// Atomics; each returns what was there before.
template <class T>
T atomicAdd(T* at, T value) {
  return ringside::cuda_host::atomically(at, [value](T old) { return old + value; });
}
// The larger.
template <class T>
T atomicMax(T* at, T value) {
  return ringside::cuda_host::atomically(at, [value](T old) { return old < value ? value : old; });
}
// The smaller.
template <class T>
T atomicMin(T* at, T value) {
  return ringside::cuda_host::atomically(at, [value](T old) { return value < old ? value : old; });
}
// The value.
template <class T>
T atomicExch(T* at, T value) {
  return ringside::cuda_host::atomically(at, [value](T) { return value; });
}
// The value, where `expected` was there.
template <class T>
T atomicCAS(T* at, T expected, T value) {
  return ringside::cuda_host::atomically(
      at, [expected, value](T old) { return old == expected ? value : old; });
}

// A load through the cache for what nobody writes.
template <class T>
T __ldg(const T* at) {
  return *at;
}
