#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "sp/attention/cuda/row_kernels.h"

namespace ringside::sp {
namespace {

// A warp handles one item (a row, or a row of one head), a block of threads eight.
constexpr int kLanes = 32;
constexpr int kWarps = 8;
constexpr int64_t kMaxBlocks = 1 << 20;  // above it the grid strides over the items

__device__ float to_float(float x) { return x; }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T x[kWidth];
};

struct Place {
  int64_t from;
  int64_t to;
};

// Source and destination of work row `row`: its move is the last one that begins at or before it.
__device__ Place place_of(const MoveTable& table, int64_t row) {
  int64_t low = 0;
  int64_t high = table.num_moves;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (table.moves[middle].first <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const RowMove move = table.moves[low];
  return {move.from + row - move.first, move.to + row - move.first};
}

template <class Unit>
__global__ void gather_kernel(Unit* to, const Unit* from, int64_t row_units, int64_t stride_units,
                              MoveTable table) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < table.rows;
       row += step) {
    const Place place = place_of(table, row);
    for (int64_t i = threadIdx.x; i < row_units; i += kLanes) {
      to[place.to * row_units + i] = from[place.from * stride_units + i];
    }
  }
}

template <class T, int kWidth>
__global__ void add_kernel(WholeRows whole, PartRows part, MoveTable table) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = table.rows * part.heads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const int64_t head = item % part.heads;
    const Place place = place_of(table, item / part.heads);
    const auto* from = reinterpret_cast<const Vector<T, kWidth>*>(
        static_cast<const T*>(part.data) + place.from * part.row_stride + head * part.head_stride);
    auto* to = reinterpret_cast<Vector<float, kWidth>*>(
        whole.data + (place.to * whole.heads + whole.head_begin + head) * part.head_dim);
    for (int64_t i = threadIdx.x; i < part.head_dim / kWidth; i += kLanes) {
      const Vector<T, kWidth> added = from[i];
      Vector<float, kWidth> sum = to[i];
      for (int w = 0; w < kWidth; ++w) {
        sum.x[w] += to_float(added.x[w]);
      }
      to[i] = sum;
    }
  }
}

// With kMerge false the whole is written but not read: it may be uninitialised.
template <class T, int kWidth, bool kMerge>
__global__ void merge_kernel(WholeRows whole, PartRows part, LseRows lse, MoveTable table) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = table.rows * part.heads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const int64_t head = item % part.heads;
    const Place place = place_of(table, item / part.heads);
    const int64_t row = place.to * whole.heads + whole.head_begin + head;
    const float part_lse = lse.part[place.from * lse.part_row_stride + head * lse.part_head_stride];
    float weight = 0.0f;
    float part_weight = 1.0f;
    float merged_lse = part_lse;
    if (kMerge) {
      const float whole_lse = lse.whole[row];
      const float highest = fmaxf(whole_lse, part_lse);
      // Avoids -inf - -inf, which is NaN.
      const float shift = highest == -INFINITY ? 0.0f : highest;
      const float a = expf(whole_lse - shift);
      const float b = expf(part_lse - shift);
      const float divisor = a + b == 0.0f ? 1.0f : a + b;
      weight = a / divisor;
      part_weight = b / divisor;
      merged_lse = logf(a + b) + shift;
    }
    __syncwarp();  // every lane has read the old LSE
    if (threadIdx.x == 0) {
      lse.whole[row] = merged_lse;
    }
    const auto* from = reinterpret_cast<const Vector<T, kWidth>*>(
        static_cast<const T*>(part.data) + place.from * part.row_stride + head * part.head_stride);
    auto* to = reinterpret_cast<Vector<float, kWidth>*>(whole.data + row * part.head_dim);
    for (int64_t i = threadIdx.x; i < part.head_dim / kWidth; i += kLanes) {
      const Vector<T, kWidth> added = from[i];
      Vector<float, kWidth> out;
      if (kMerge) {
        out = to[i];
      }
      for (int w = 0; w < kWidth; ++w) {
        const float value = to_float(added.x[w]);
        out.x[w] = kMerge ? out.x[w] * weight + value * part_weight : value;
      }
      to[i] = out;
    }
  }
}

unsigned blocks_for(int64_t items) {
  const int64_t blocks = (items + kWarps - 1) / kWarps;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

bool divisible(const void* pointer, int64_t by) {
  return reinterpret_cast<uintptr_t>(pointer) % by == 0;
}

template <class Unit>
cudaError_t launch_gather(void* to, const void* from, int64_t row_bytes, int64_t row_stride_bytes,
                          const MoveTable& table, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Unit));
  gather_kernel<<<blocks_for(table.rows), dim3(kLanes, kWarps), 0, stream>>>(
      static_cast<Unit*>(to), static_cast<const Unit*>(from), row_bytes / kBytes,
      row_stride_bytes / kBytes, table);
  return cudaGetLastError();
}

// True when whole and part can be read four elements at a time.
bool four_wide(const WholeRows& whole, const PartRows& part) {
  const int64_t element = part.type == ElementType::kFloat32 ? 4 : 2;
  return part.head_dim % 4 == 0 && part.row_stride % 4 == 0 && part.head_stride % 4 == 0 &&
         divisible(part.data, 4 * element) && divisible(whole.data, 16);
}

template <class T>
cudaError_t launch_add(const WholeRows& whole, const PartRows& part, const MoveTable& table,
                       cudaStream_t stream) {
  const unsigned blocks = blocks_for(table.rows * part.heads);
  if (four_wide(whole, part)) {
    add_kernel<T, 4><<<blocks, dim3(kLanes, kWarps), 0, stream>>>(whole, part, table);
  } else {
    add_kernel<T, 1><<<blocks, dim3(kLanes, kWarps), 0, stream>>>(whole, part, table);
  }
  return cudaGetLastError();
}

template <class T, bool kMerge>
cudaError_t launch_merge(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                         const MoveTable& table, cudaStream_t stream) {
  const unsigned blocks = blocks_for(table.rows * part.heads);
  if (four_wide(whole, part)) {
    merge_kernel<T, 4, kMerge>
        <<<blocks, dim3(kLanes, kWarps), 0, stream>>>(whole, part, lse, table);
  } else {
    merge_kernel<T, 1, kMerge>
        <<<blocks, dim3(kLanes, kWarps), 0, stream>>>(whole, part, lse, table);
  }
  return cudaGetLastError();
}

template <bool kMerge>
cudaError_t merge_or_write(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                           const MoveTable& table, cudaStream_t stream) {
  if (table.rows == 0 || part.heads == 0) {
    return cudaSuccess;
  }
  switch (part.type) {
    case ElementType::kBFloat16:
      return launch_merge<__nv_bfloat16, kMerge>(whole, part, lse, table, stream);
    case ElementType::kFloat16:
      return launch_merge<__half, kMerge>(whole, part, lse, table, stream);
    case ElementType::kFloat32:
      return launch_merge<float, kMerge>(whole, part, lse, table, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t gather_rows_cuda(void* to, const void* from, int64_t row_bytes,
                             int64_t row_stride_bytes, const MoveTable& table,
                             cudaStream_t stream) {
  if (table.rows == 0 || row_bytes == 0) {
    return cudaSuccess;
  }
  const auto fits = [&](int64_t unit) {
    return row_bytes % unit == 0 && row_stride_bytes % unit == 0 && divisible(to, unit) &&
           divisible(from, unit);
  };
  if (fits(16)) {
    return launch_gather<uint4>(to, from, row_bytes, row_stride_bytes, table, stream);
  }
  if (fits(4)) {
    return launch_gather<uint32_t>(to, from, row_bytes, row_stride_bytes, table, stream);
  }
  return launch_gather<uint8_t>(to, from, row_bytes, row_stride_bytes, table, stream);
}

cudaError_t add_rows_cuda(const WholeRows& whole, const PartRows& part, const MoveTable& table,
                          cudaStream_t stream) {
  if (table.rows == 0 || part.heads == 0) {
    return cudaSuccess;
  }
  switch (part.type) {
    case ElementType::kBFloat16:
      return launch_add<__nv_bfloat16>(whole, part, table, stream);
    case ElementType::kFloat16:
      return launch_add<__half>(whole, part, table, stream);
    case ElementType::kFloat32:
      return launch_add<float>(whole, part, table, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t merge_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream) {
  return merge_or_write<true>(whole, part, lse, table, stream);
}

cudaError_t write_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream) {
  return merge_or_write<false>(whole, part, lse, table, stream);
}

}  // namespace ringside::sp
