#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "engine/nn/cuda/kernels.h"
#include "engine/nn/cuda/row_functions.h"

namespace ringside::engine {
namespace {

using rows::HeadRows;
using rows::Lane;

constexpr int kWarp = 32;
constexpr int kWarps = 8;                // of a block that gives each warp an item of its own
constexpr int64_t kMaxBlocks = 1 << 20;  // above it the grid strides over the items
// Blocks of a kernel that leaves one partial sum a block: four for each SM of the largest GPUs of
// today, and little to add afterwards.
constexpr int64_t kPartialBlocks = 528;
// Shared memory that a block may have without asking for more.
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

__device__ Lane lane_of_block() { return {threadIdx.x, blockDim.x}; }
__device__ Lane lane_of_warp() { return {threadIdx.x, kWarp}; }

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

template <class Acc>
__device__ Acc* shared_memory() {
  extern __shared__ double bytes[];
  return reinterpret_cast<Acc*>(bytes);
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

template <class T>
__device__ HeadRows<T> head_rows(const HeadTensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.token_stride, tensor.head_stride};
}

template <class T>
__device__ const T* norm_of(const RotationArgs& args, int64_t head) {
  return static_cast<const T*>(head < args.shape.query_heads ? args.q_norm : args.k_norm);
}

template <class T, class Acc, int kWidth>
__global__ void rotation_kernel(RotationArgs args, HeadTensor heads, HeadTensor qk) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = args.shape.tokens * qk.heads, half = args.shape.head_dim / 2;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const auto [token, head] = rows::token_head(item, qk.heads);
    const rows::RotatedRow<T, Acc, kWidth> one{head_rows<T>(heads).at(token, head),
                                               norm_of<T>(args, head),
                                               static_cast<const T*>(args.cos) + token * half,
                                               static_cast<const T*>(args.sin) + token * half,
                                               head_rows<T>(qk).at(token, head),
                                               half,
                                               args.plus_one};
    Acc rstd = 1;
    if (one.weight != nullptr) {
      const Acc sum = warp_sum(one.squares(lane_of_warp()));
      rstd = rows::reciprocal_root(sum / static_cast<Acc>(2 * half), args.eps);
      if (threadIdx.x == 0) {
        static_cast<Acc*>(args.rstd)[item] = rstd;
      }
    }
    one.write(lane_of_warp(), rstd);
  }
}

// The gradient that reaches a head from outside: of q, k or v.
template <class T>
__device__ const T* outer_gradient(const HeadShape& shape, const HeadGradArgs& grads, int64_t token,
                                   int64_t head) {
  if (head < shape.query_heads) {
    return head_rows<const T>(grads.dq).at(token, head);
  }
  const int64_t rotated = shape.query_heads + shape.key_heads;
  return head < rotated ? head_rows<const T>(grads.dk).at(token, head - shape.query_heads)
                        : head_rows<const T>(grads.dv).at(token, head - rotated);
}

template <class T, class Acc, int kWidth>
__global__ void rotation_grad_kernel(RotationArgs args, HeadGradArgs grads) {
  const HeadShape& shape = args.shape;
  const bool normed = args.q_norm != nullptr;
  const int64_t d = shape.head_dim, rotated = shape.query_heads + shape.key_heads;
  // [warp, query or key, D]: the sums of each warp.
  Acc* d_norms = shared_memory<Acc>() + threadIdx.y * 2 * d;
  for (int64_t i = threadIdx.x; normed && i < 2 * d; i += kWarp) {
    d_norms[i] = 0;
  }
  __syncwarp();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t items = shape.tokens * grads.heads.heads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < items;
       item += step) {
    const auto [token, head] = rows::token_head(item, grads.heads.heads);
    const T* dy = outer_gradient<T>(shape, grads, token, head);
    T* dx = head_rows<T>(grads.d_heads).at(token, head);
    if (head >= rotated) {
      for (int64_t i = threadIdx.x; i < d; i += kWarp) {
        dx[i] = dy[i];
      }
      continue;
    }
    const rows::RotatedGradRow<T, Acc, kWidth> one{
        dy,
        head_rows<const T>(grads.heads).at(token, head),
        norm_of<T>(args, head),
        static_cast<const T*>(args.cos) + token * (d / 2),
        static_cast<const T*>(args.sin) + token * (d / 2),
        dx,
        d_norms + (head < shape.query_heads ? 0 : d),
        d / 2,
        args.plus_one};
    Acc rstd = 1;
    Acc mean = 0;
    if (normed) {
      rstd = static_cast<const Acc*>(args.rstd)[token * rotated + head];
      mean = warp_sum(one.products(lane_of_warp(), rstd)) / static_cast<Acc>(d);
    }
    one.write(lane_of_warp(), rstd, mean);
  }
  __syncthreads();
  const Acc* of_warps = shared_memory<Acc>();
  Acc* partial = static_cast<Acc*>(grads.partial) + blockIdx.x * 2 * d;
  for (int64_t i = threadIdx.y * kWarp + threadIdx.x; normed && i < 2 * d; i += kWarps * kWarp) {
    Acc total = 0;
    for (int w = 0; w < kWarps; ++w) {
      total += of_warps[w * 2 * d + i];
    }
    partial[i] = total;
  }
}

template <class T, class Acc, int kWidth>
__global__ void swiglu_kernel(const T* gate_up, T* out, int64_t items, int64_t f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items;
       i += step) {
    rows::swiglu_pack<T, kWidth>(gate_up, out, f, i);
  }
}

template <class T, class Acc, int kWidth>
__global__ void swiglu_grad_kernel(const T* dy, const T* gate_up, T* d_gate_up, int64_t items,
                                   int64_t f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < items;
       i += step) {
    rows::swiglu_grad_pack<T, kWidth>(dy, gate_up, d_gate_up, f, i);
  }
}

// The merged sums of all threads of a block, in thread 0.
template <class Acc>
__device__ rows::ScoreSums<Acc> block_merge(rows::ScoreSums<Acc> sums) {
  __shared__ Acc of_warp[3][kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sums.merge({__shfl_down_sync(0xffffffff, sums.max, offset),
                __shfl_down_sync(0xffffffff, sums.sum, offset),
                __shfl_down_sync(0xffffffff, sums.weighted, offset)});
  }
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) {
    of_warp[0][warp] = sums.max;
    of_warp[1][warp] = sums.sum;
    of_warp[2][warp] = sums.weighted;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
      sums.merge({of_warp[0][w], of_warp[1][w], of_warp[2][w]});
    }
  }
  return sums;
}

// One block a row.
template <class T, class Acc, int kWidth>
__global__ void score_kernel(ScoreArgs args, Acc* logprobs, Acc* entropy, Acc* lse) {
  const int64_t row = blockIdx.x;
  const rows::ScoreRow<T, Acc, kWidth> one{static_cast<const T*>(args.logits) + row * args.vocab,
                                           args.vocab,
                                           Acc(1) / static_cast<const Acc*>(args.temperature)[row]};
  const rows::ScoreSums<Acc> sums = block_merge(one.scan(lane_of_block()));
  if (threadIdx.x == 0) {
    const int64_t target = args.targets[row];
    CUDA_KERNEL_ASSERT(target >= 0 && target < args.vocab && "a target outside the vocabulary");
    lse[row] = sums.lse();
    entropy[row] = sums.entropy();
    logprobs[row] = one.tempered(target) - sums.lse();
  }
}

template <class T, class Acc, int kWidth>
__global__ void score_grad_kernel(ScoreArgs args, ScoreGrads grads) {
  const int64_t row = blockIdx.x;
  const auto number = [row](const void* array) { return static_cast<const Acc*>(array)[row]; };
  const rows::ScoreGradRow<T, Acc, kWidth> one{
      static_cast<T*>(args.logits) + row * args.vocab,
      args.vocab,
      args.targets[row],
      Acc(1) / number(args.temperature),
      number(grads.lse),
      number(grads.entropy),
      number(grads.g_logprobs),
      grads.g_entropy == nullptr ? Acc(0) : number(grads.g_entropy)};
  one.write(lane_of_block());
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

unsigned grid(int64_t items, int64_t items_of_block, int64_t most = kMaxBlocks) {
  return static_cast<unsigned>(std::min((items + items_of_block - 1) / items_of_block, most));
}

// Threads for a row: enough for one load each, at least a warp, at most 512.
unsigned threads_for(int64_t size, int width) {
  const int64_t loads = (size + width - 1) / width;
  return static_cast<unsigned>(std::clamp<int64_t>((loads + kWarp - 1) / kWarp, 1, 16) * kWarp);
}

// The result is in the wider of T and Acc: a weight's gradient is not rounded below its sums.
template <class T, class Acc>
cudaError_t add_columns(const void* partial, void* out, int64_t num_rows, int64_t columns,
                        cudaStream_t stream) {
  using Wider = std::conditional_t<(sizeof(T) > sizeof(Acc)), T, Acc>;
  column_sum_kernel<<<grid(columns, kWarp), dim3(kWarp, kWarps), 0, stream>>>(
      static_cast<const Acc*>(partial), static_cast<Wider*>(out), num_rows, columns);
  return cudaGetLastError();
}

// Whether pairs of elements can be read at once from every head and from cos and sin.
bool two_wide(const RotationArgs& args, std::initializer_list<HeadTensor> tensors, int64_t bytes) {
  const auto fits = [bytes](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % (2 * bytes) == 0;
  };
  return args.shape.head_dim % 4 == 0 && fits(args.cos) && fits(args.sin) &&
         std::all_of(tensors.begin(), tensors.end(), [&fits](const HeadTensor& tensor) {
           return tensor.token_stride % 2 == 0 && tensor.head_stride % 2 == 0 && fits(tensor.data);
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
    if (shared > kSharedBytes) {
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

cudaError_t qk_norm_rope_cuda(const Types& types, const RotationArgs& args, const HeadTensor& heads,
                              const HeadTensor& qk, cudaStream_t stream) {
  const int64_t items = args.shape.tokens * qk.heads;
  if (items == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    const dim3 threads(kWarp, kWarps);
    if (two_wide(args, {heads, qk}, sizeof(T))) {
      rotation_kernel<T, Acc, 2><<<grid(items, kWarps), threads, 0, stream>>>(args, heads, qk);
    } else {
      rotation_kernel<T, Acc, 1><<<grid(items, kWarps), threads, 0, stream>>>(args, heads, qk);
    }
    return cudaGetLastError();
  });
}

cudaError_t qk_norm_rope_backward_cuda(const Types& types, const RotationArgs& args,
                                       const HeadGradArgs& grads, cudaStream_t stream) {
  const int64_t items = args.shape.tokens * grads.heads.heads;
  const bool normed = args.q_norm != nullptr;
  if (items == 0 && !normed) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    const int64_t d = args.shape.head_dim, blocks = norm_grad_blocks(items);
    const int64_t shared = normed ? static_cast<int64_t>(kWarps * 2 * d * sizeof(Acc)) : int64_t{0};
    if (shared > kSharedBytes) {
      return cudaErrorInvalidValue;
    }
    const dim3 threads(kWarp, kWarps);
    const auto n = static_cast<unsigned>(blocks);
    if (two_wide(args, {grads.dq, grads.dk, grads.heads}, sizeof(T))) {
      rotation_grad_kernel<T, Acc, 2><<<n, threads, shared, stream>>>(args, grads);
    } else {
      rotation_grad_kernel<T, Acc, 1><<<n, threads, shared, stream>>>(args, grads);
    }
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess || !normed
               ? error
               : add_columns<T, Acc>(grads.partial, grads.d_norms, blocks, 2 * d, stream);
  });
}

cudaError_t swiglu_cuda(const Types& types, const void* gate_up, void* out, int64_t rows, int64_t f,
                        cudaStream_t stream) {
  if (rows * f == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    return with_width<T>(aligned<T>(f, {gate_up, out}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t items = rows * f / kWidth;
      swiglu_kernel<T, Acc, kWidth><<<grid(items, 256), 256, 0, stream>>>(
          static_cast<const T*>(gate_up), static_cast<T*>(out), items, f);
      return cudaGetLastError();
    });
  });
}

cudaError_t swiglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                 void* d_gate_up, int64_t rows, int64_t f, cudaStream_t stream) {
  if (rows * f == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    return with_width<T>(aligned<T>(f, {dy, gate_up, d_gate_up}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t items = rows * f / kWidth;
      swiglu_grad_kernel<T, Acc, kWidth><<<grid(items, 256), 256, 0, stream>>>(
          static_cast<const T*>(dy), static_cast<const T*>(gate_up), static_cast<T*>(d_gate_up),
          items, f);
      return cudaGetLastError();
    });
  });
}

cudaError_t token_scores_cuda(const Types& types, const ScoreArgs& args, void* logprobs,
                              void* entropy, void* lse, cudaStream_t stream) {
  if (args.rows == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    return with_width<T>(aligned<T>(args.vocab, {args.logits}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      score_kernel<T, Acc, kWidth>
          <<<static_cast<unsigned>(args.rows), threads_for(args.vocab, kWidth), 0, stream>>>(
              args, static_cast<Acc*>(logprobs), static_cast<Acc*>(entropy),
              static_cast<Acc*>(lse));
      return cudaGetLastError();
    });
  });
}

cudaError_t token_scores_backward_cuda(const Types& types, const ScoreArgs& args,
                                       const ScoreGrads& grads, cudaStream_t stream) {
  if (args.rows == 0) {
    return cudaSuccess;
  }
  return with_types(types, [&](auto t, auto acc) {
    using T = decltype(t);
    using Acc = decltype(acc);
    return with_width<T>(aligned<T>(args.vocab, {args.logits}), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      score_grad_kernel<T, Acc, kWidth>
          <<<static_cast<unsigned>(args.rows), threads_for(args.vocab, kWidth), 0, stream>>>(args,
                                                                                             grads);
      return cudaGetLastError();
    });
  });
}

}  // namespace ringside::engine
