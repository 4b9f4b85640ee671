// Parts of several CUDA kernels: sums over lanes, sums of partial results, and what a launch needs.
// For .cu files only.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "engine/ops/kernel_types.h"
#include "engine/ops/rows.h"

namespace ringside::engine {

constexpr int kWarp = 32;
constexpr int kWarps = 8;                // of a block that gives each warp an item of its own
constexpr int64_t kMaxBlocks = 1 << 20;  // above it the grid strides over the items
// Shared memory that a block may have without asking for more: arrays and what its launch asks for.
constexpr int64_t kSharedBytes = 48 << 10;

// The sums of all lanes of a warp, in every lane.
template <class Acc>
__device__ Acc warp_sum(Acc value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, offset);
  }
  return value;
}

// The sum over all threads of a one-dimensional block, in every thread.
template <class Acc>
__device__ Acc block_sum(Acc value) {
  __shared__ Acc of_warp[kWarp];
  value = warp_sum(value);
  __syncthreads();  // the last call's result has been read
  if (threadIdx.x % kWarp == 0) {
    of_warp[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  Acc total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    total += of_warp[w];
  }
  return total;
}

// The lanes of a block, and of a warp.
__device__ inline rows::Lane lane_of_block() { return {threadIdx.x, blockDim.x}; }
__device__ inline rows::Lane lane_of_warp() { return {threadIdx.x, kWarp}; }

// The shared memory that the launch asked for.
template <class Acc>
__device__ Acc* shared_memory() {
  extern __shared__ double bytes[];
  return reinterpret_cast<Acc*>(bytes);
}

// out[column] = sum over rows of partial[row, column], always in the same order.
template <class T, class Acc>
__global__ void column_sum_kernel(const Acc* partial, T* out, int64_t num_rows, int64_t columns) {
  __shared__ Acc sums[kWarps][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  Acc total = 0;
  if (column < columns) {
    for (int64_t row = threadIdx.y; row < num_rows; row += kWarps) {
      total += partial[row * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int w = 1; w < kWarps; ++w) {
      total += sums[w][threadIdx.x];
    }
    out[column] = static_cast<T>(total);
  }
}

// Calls f with a value of the tensors' type and one of the sums' type.
template <class F>
cudaError_t with_types(const Types& types, F f) {
  switch (types.element) {
    case Element::kBFloat16:
      return f(c10::BFloat16(), float());
    case Element::kHalf:
      return f(c10::Half(), float());
    case Element::kFloat:
      return f(float(), float());
    case Element::kDouble:
      return types.sums_in_fp32 ? f(double(), float()) : f(double(), double());
  }
  return cudaErrorInvalidValue;
}

// Whether rows of `size` elements at these addresses can be read 16 bytes at a time.
template <class T>
bool aligned(int64_t size, std::initializer_list<const void*> pointers) {
  constexpr auto kElements = static_cast<int64_t>(16 / sizeof(T));
  return size % kElements == 0 && std::all_of(pointers.begin(), pointers.end(), [](const void* p) {
           return reinterpret_cast<uintptr_t>(p) % 16 == 0;
         });
}

// Calls f with the width of a load as a constant.
template <class T, class F>
cudaError_t with_width(bool wide, F f) {
  return wide ? f(std::integral_constant<int, 16 / sizeof(T)>())
              : f(std::integral_constant<int, 1>());
}

// Blocks for `items`, each with `items_of_block` of them.
inline unsigned grid(int64_t items, int64_t items_of_block, int64_t most = kMaxBlocks) {
  return static_cast<unsigned>(std::min((items + items_of_block - 1) / items_of_block, most));
}

// Threads for a row: enough for one load each, at least a warp, at most 512.
inline unsigned threads_for(int64_t size, int width) {
  const int64_t loads = (size + width - 1) / width;
  return static_cast<unsigned>(std::clamp<int64_t>((loads + kWarp - 1) / kWarp, 1, 16) * kWarp);
}

// Launches column_sum_kernel. The result is in the wider of T and Acc: a weight's gradient is not
// rounded below its sums.
template <class T, class Acc>
cudaError_t add_columns(const void* partial, void* out, int64_t num_rows, int64_t columns,
                        cudaStream_t stream) {
  using Wider = std::conditional_t<(sizeof(T) > sizeof(Acc)), T, Acc>;
  column_sum_kernel<<<grid(columns, kWarp), dim3(kWarp, kWarps), 0, stream>>>(
      static_cast<const Acc*>(partial), static_cast<Wider*>(out), num_rows, columns);
  return cudaGetLastError();
}

}  // namespace ringside::engine
