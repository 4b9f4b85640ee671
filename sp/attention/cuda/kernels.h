// CUDA kernels of attention: ATen's FlashAttention 2 over varlen groups of blocks, cuDNN for long
// documents (cudnn_attention.h), or matrix products (exact_attention.h); merges and sums by
// Ringside's own kernels. Exists only in builds with a CUDA toolkit. Needs a GPU of compute
// capability 8.0 or newer.
//
// Source: Dao 2023, FlashAttention-2.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "sp/attention/cuda/cudnn_attention.h"
#include "sp/attention/cuda/varlen_group_ops.h"
#include "sp/attention/ring_step_kernels.h"

namespace ringside::sp {

// For CUDA tensors in bf16 or fp16, with head dims that are multiples of 8 up to 256: the flash
// kernel. It rounds each entry's output and gradients to the wire dtype; its LSE is fp32. Both are
// merged and summed in fp32. For fp32 and fp64: matrix products and a softmax in that dtype, for
// comparisons with other devices.
// Determinism: the forward gives the same bits on every run. So do dk, dv and Ringside's own sums.
// The kernel sums dq of an entry of more than one key tile with atomics, in another order each run,
// unless at::globalContext() demands deterministic algorithms. cuDNN's backward promises no bits.
// Blocks: never; work is queued on the current stream of the tensors' device.
// Throws: c10::Error for other tensors, before a kernel runs.
// Thread safety: any thread.
std::shared_ptr<const RingStepKernels> cuda_kernels();

// The operations of cuda_kernels(), for tests and benchmarks. least_cudnn_rows: as is_for_cudnn()
// says; kNeverCudnn for the flash kernel alone.
std::shared_ptr<const VarlenGroupOps> cuda_varlen_group_ops(
    int64_t least_cudnn_rows = kLeastCudnnRows);
inline constexpr int64_t kNeverCudnn = std::numeric_limits<int64_t>::max();

}  // namespace ringside::sp
