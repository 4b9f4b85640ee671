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

// A part's elements in the dtype in which they are summed.
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widen(float x) { return x; }
__device__ double widen(double x) { return x; }

template <class T>
struct Accumulation {
  using Type = float;
};
template <>
struct Accumulation<double> {
  using Type = double;
};

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T x[kWidth];
};

struct Place {
  int64_t from;
  int64_t to;
};

// The entry of a table that holds work row `row`: the last one that begins at or before it.
template <class Entry>
__device__ const Entry& entry_of(const Entry* entries, int64_t count, int64_t row) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (entries[middle].first <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return entries[low];
}

// Source and destination of work row `row`.
__device__ Place place_of(const MoveTable& table, int64_t row) {
  const RowMove& move = entry_of(table.moves, table.num_moves, row);
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
__global__ void add_kernel(WholeRows whole, PartRows part, SumTable table) {
  using Sum = typename Accumulation<T>::Type;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = table.rows * part.heads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const int64_t head = item % part.heads;
    const int64_t work = item / part.heads;
    const RowSum& rows = entry_of(table.sums, table.num_sums, work);
    const int64_t offset = work - rows.first;
    const T* from = static_cast<const T*>(part.data) + head * part.head_stride;
    auto* to = reinterpret_cast<Vector<Sum, kWidth>*>(
        static_cast<Sum*>(whole.data) +
        ((rows.to + offset) * whole.heads + whole.head_begin + head) * part.head_dim);
    for (int64_t i = threadIdx.x; i < part.head_dim / kWidth; i += kLanes) {
      Vector<Sum, kWidth> sum = to[i];
      for (int64_t s = rows.sources_begin; s < rows.sources_end; ++s) {
        const T* row = from + (table.sources[s] + offset) * part.row_stride;
        const Vector<T, kWidth> added = reinterpret_cast<const Vector<T, kWidth>*>(row)[i];
        for (int w = 0; w < kWidth; ++w) {
          sum.x[w] += widen(added.x[w]);
        }
      }
      to[i] = sum;
    }
  }
}

// With kMerge false the whole is written but not read: it may be uninitialised.
template <class T, int kWidth, bool kMerge>
__global__ void merge_kernel(WholeRows whole, PartRows part, LseRows lse, MoveTable table) {
  using Sum = typename Accumulation<T>::Type;
  auto* whole_lses = static_cast<Sum*>(lse.whole);
  const auto* part_lses = static_cast<const Sum*>(lse.part);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = table.rows * part.heads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const int64_t head = item % part.heads;
    const Place place = place_of(table, item / part.heads);
    const int64_t row = place.to * whole.heads + whole.head_begin + head;
    const Sum part_lse = part_lses[place.from * lse.part_row_stride + head * lse.part_head_stride];
    Sum weight = 0;
    Sum part_weight = 1;
    Sum merged_lse = part_lse;
    if (kMerge) {
      const Sum whole_lse = whole_lses[row];
      const Sum highest = whole_lse > part_lse ? whole_lse : part_lse;
      // Avoids -inf - -inf, which is NaN.
      const Sum shift = highest == -INFINITY ? Sum(0) : highest;
      const Sum a = exp(whole_lse - shift);
      const Sum b = exp(part_lse - shift);
      const Sum divisor = a + b == Sum(0) ? Sum(1) : a + b;
      weight = a / divisor;
      part_weight = b / divisor;
      merged_lse = log(a + b) + shift;
    }
    __syncwarp();  // every lane has read the old LSE
    if (threadIdx.x == 0) {
      whole_lses[row] = merged_lse;
    }
    const auto* from = reinterpret_cast<const Vector<T, kWidth>*>(
        static_cast<const T*>(part.data) + place.from * part.row_stride + head * part.head_stride);
    auto* to =
        reinterpret_cast<Vector<Sum, kWidth>*>(static_cast<Sum*>(whole.data) + row * part.head_dim);
    for (int64_t i = threadIdx.x; i < part.head_dim / kWidth; i += kLanes) {
      const Vector<T, kWidth> added = from[i];
      Vector<Sum, kWidth> out;
      if (kMerge) {
        out = to[i];
      }
      for (int w = 0; w < kWidth; ++w) {
        const Sum value = widen(added.x[w]);
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
  const int64_t narrow = part.type == ElementType::kFloat32 ? 4 : 2;
  const int64_t element = part.type == ElementType::kFloat64 ? 8 : narrow;
  const int64_t summed = part.type == ElementType::kFloat64 ? 8 : 4;
  return part.head_dim % 4 == 0 && part.row_stride % 4 == 0 && part.head_stride % 4 == 0 &&
         divisible(part.data, 4 * element) && divisible(whole.data, 4 * summed);
}

template <class T>
cudaError_t launch_add(const WholeRows& whole, const PartRows& part, const SumTable& table,
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
    case ElementType::kFloat64:
      return launch_merge<double, kMerge>(whole, part, lse, table, stream);
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

cudaError_t add_rows_cuda(const WholeRows& whole, const PartRows& part, const SumTable& table,
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
    case ElementType::kFloat64:
      return launch_add<double>(whole, part, table, stream);
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
