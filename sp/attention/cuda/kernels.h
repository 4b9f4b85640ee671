// CUDA kernels of attention: ATen's FlashAttention 2 over varlen groups of blocks; merges and sums
// in fp32 by Ringside's own kernels. Exists only in builds with a CUDA toolkit. Needs a GPU of
// compute capability 8.0 or newer.
//
// Source: Dao 2023, FlashAttention-2.
#pragma once

#include <memory>

#include "sp/attention/cuda/varlen_group_ops.h"
#include "sp/attention/ring_step_kernels.h"

namespace ringside::sp {

// For bf16 and fp16 CUDA tensors with head dims that are multiples of 8 up to 256. The kernel
// rounds each block's output and gradients to the wire dtype; its LSE is fp32. Both are merged and
// summed in fp32.
// Determinism: the forward gives the same bits on every run. So do dk, dv and Ringside's own sums.
// The kernel sums dq of a block of more than one key tile with atomics, in another order each run,
// unless at::globalContext() demands deterministic algorithms.
// Blocks: never; work is queued on the current stream of the tensors' device.
// Throws: c10::Error for other tensors, before a kernel runs.
// Thread safety: any thread.
std::shared_ptr<const RingStepKernels> cuda_kernels();

// The operations of cuda_kernels(), for tests and benchmarks.
std::shared_ptr<const VarlenGroupOps> cuda_varlen_group_ops();

}  // namespace ringside::sp
