#include <algorithm>

#include "engine/ops/kernel_parts.cuh"
#include "engine/ops/token_scores_kernel.h"
#include "engine/ops/token_scores_rows.h"

namespace ringside::engine {
namespace {

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

}  // namespace

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
