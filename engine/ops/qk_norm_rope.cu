#include <algorithm>

#include "engine/ops/kernel_parts.cuh"
#include "engine/ops/qk_norm_rope_kernel.h"
#include "engine/ops/qk_norm_rope_rows.h"
#include "engine/ops/rms_norm_kernel.h"

namespace ringside::engine {
namespace {

using rows::HeadRows;

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

}  // namespace ringside::engine
