#include <algorithm>

#include "engine/ops/kernel_parts.cuh"
#include "engine/ops/rms_norm_kernel.h"
#include "engine/ops/rms_norm_rows.h"

namespace ringside::engine {
namespace {

// Blocks of a kernel that leaves one partial sum a block: four for each SM of the largest GPUs of
// today, and little to add afterwards.
constexpr int64_t kPartialBlocks = 528;

template <class T, class Acc, int kWidth>
__global__ void norm_kernel(NormArgs args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t at = row * args.size;
    const rows::NormRow<T, Acc, kWidth> one{
        static_cast<const T*>(args.x) + at,
        args.branch == nullptr ? nullptr : static_cast<const T*>(args.branch) + at,
        static_cast<const T*>(args.weight),
        args.sum == nullptr ? nullptr : static_cast<T*>(args.sum) + at,
        static_cast<T*>(args.y) + at,
        args.size,
        args.plus_one};
    const Acc mean = block_sum(one.squares(lane_of_block())) / static_cast<Acc>(args.size);
    const Acc rstd = rows::reciprocal_root(mean, args.eps);
    if (threadIdx.x == 0) {
      static_cast<Acc*>(args.rstd)[row] = rstd;
    }
    one.write(lane_of_block(), rstd);
  }
}

template <class T, class Acc, int kWidth>
__global__ void norm_grad_kernel(NormGradArgs args) {
  Acc* d_weight = shared_memory<Acc>();  // [size]; a thread touches its own elements only
  rows::for_each_pack<kWidth>(args.size, lane_of_block(), [&](int64_t i) {
    for (int w = 0; w < kWidth; ++w) {
      d_weight[i + w] = 0;
    }
  });
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t at = row * args.size;
    const rows::NormGradRow<T, Acc, kWidth> one{
        static_cast<const T*>(args.dy) + at,
        static_cast<const T*>(args.x) + at,
        static_cast<const T*>(args.weight),
        args.d_sum == nullptr ? nullptr : static_cast<const T*>(args.d_sum) + at,
        static_cast<T*>(args.dx) + at,
        d_weight,
        args.size,
        args.plus_one};
    const Acc rstd = static_cast<const Acc*>(args.rstd)[row];
    const Acc mean = block_sum(one.products(lane_of_block(), rstd)) / static_cast<Acc>(args.size);
    one.write(lane_of_block(), rstd, mean);
  }
  Acc* partial = static_cast<Acc*>(args.partial) + blockIdx.x * args.size;
  rows::for_each_pack<kWidth>(args.size, lane_of_block(), [&](int64_t i) {
    for (int w = 0; w < kWidth; ++w) {
      partial[i + w] = d_weight[i + w];
    }
  });
}

}  // namespace

int64_t norm_grad_blocks(int64_t items) { return std::clamp<int64_t>(items, 1, kPartialBlocks); }

cudaError_t rms_norm_cuda(const Types& types, const NormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    const bool wide = aligned<T>(args.size, {args.x, args.branch, args.weight, args.sum, args.y});
    return with_width<T>(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      norm_kernel<T, Acc, kWidth>
          <<<grid(args.rows, 1), threads_for(args.size, kWidth), 0, stream>>>(args);
      return cudaGetLastError();
    });
  });
}

cudaError_t rms_norm_backward_cuda(const Types& types, const NormGradArgs& args,
                                   cudaStream_t stream) {
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    const auto shared = static_cast<int64_t>(args.size * sizeof(Acc));
    if (shared + static_cast<int64_t>(kWarp * sizeof(Acc)) > kSharedBytes) {  // block_sum's array
      return cudaErrorInvalidValue;
    }
    const int64_t blocks = norm_grad_blocks(args.rows);
    const bool wide = aligned<T>(args.size, {args.dy, args.x, args.weight, args.d_sum, args.dx});
    const cudaError_t error = with_width<T>(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      norm_grad_kernel<T, Acc, kWidth>
          <<<static_cast<unsigned>(blocks), threads_for(args.size, kWidth), shared, stream>>>(args);
      return cudaGetLastError();
    });
    return error != cudaSuccess
               ? error
               : add_columns<T, Acc>(args.partial, args.d_weight, blocks, args.size, stream);
  });
}

}  // namespace ringside::engine
