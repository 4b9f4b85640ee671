#include <cmath>

#include "sp/attention/lse_merge_cuda.h"

namespace ringside::sp {
namespace {

// One block of threads per row: every thread derives the same two weights, then scales its part of the row.
__global__ void merge_rows(float* out_a, float* lse_a, const float* out_b, const float* lse_b, int64_t head_dim) {
  const int64_t row = blockIdx.x;
  const float a = lse_a[row];
  const float b = lse_b[row];
  const float highest = fmaxf(a, b);
  const float shift = highest == -INFINITY ? 0.0f : highest;  // keeps -inf - -inf from becoming NaN
  const float weight_a = expf(a - shift);
  const float weight_b = expf(b - shift);
  const float sum = weight_a + weight_b;
  const float divisor = sum == 0.0f ? 1.0f : sum;
  for (int64_t d = threadIdx.x; d < head_dim; d += blockDim.x) {
    const int64_t i = row * head_dim + d;
    out_a[i] = out_a[i] * (weight_a / divisor) + out_b[i] * (weight_b / divisor);
  }
  __syncthreads();  // every thread has read lse_a
  if (threadIdx.x == 0) {
    lse_a[row] = logf(sum) + shift;
  }
}

}  // namespace

cudaError_t merge_partials_cuda(float* out_a, float* lse_a, const float* out_b, const float* lse_b,
                                int64_t rows, int64_t head_dim, cudaStream_t stream) {
  if (rows == 0) {
    return cudaSuccess;
  }
  const int threads = head_dim >= 128 ? 128 : 32;
  merge_rows<<<static_cast<unsigned>(rows), threads, 0, stream>>>(out_a, lse_a, out_b, lse_b, head_dim);
  return cudaGetLastError();
}

}  // namespace ringside::sp
