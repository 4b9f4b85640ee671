// The merge of lse_merge.h as one CUDA kernel, in place, without torch: raw device pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ringside::sp {

// out_a [rows, head_dim] and lse_a [rows] become the merge with out_b and lse_b, all fp32 on the device of `stream`. Rows
// where both LSEs are -inf become zero with LSE -inf. Asynchronous on `stream`; returns the launch's error.
cudaError_t merge_partials_cuda(float* out_a, float* lse_a, const float* out_b, const float* lse_b,
                                int64_t rows, int64_t head_dim, cudaStream_t stream);

}  // namespace ringside::sp
