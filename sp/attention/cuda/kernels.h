// The CUDA side of an attention layer: ATen's FlashAttention 2 (Dao 2023) over varlen_groups of
// blocks, merged and summed in fp32 by kernels of our own. Only in builds that have a CUDA toolkit;
// needs a GPU of compute capability 8.0 or newer.
#pragma once

#include <memory>

#include "sp/attention/cuda/varlen_group_ops.h"
#include "sp/attention/ring_step_kernels.h"

namespace ringside::sp {

// For bf16 and fp16 CUDA tensors with head dims that are a multiple of 8 up to 256; anything else
// throws c10::Error before a kernel runs. Each block's output and gradients come from the kernel
// rounded to the wire dtype, its LSE in fp32; they are merged and summed in fp32. Work is queued on
// the current stream of the tensors' device and nothing waits for it. Thread-safe. The forward
// gives the same bits on every run. So do dk, dv and all of our sums; dq of a block of more than
// one key tile is summed by the kernel with atomics, in another order each run, unless
// at::globalContext() demands deterministic algorithms.
std::shared_ptr<const RingStepKernels> cuda_kernels();

// The operations cuda_kernels() is made of, for tests and benchmarks.
std::shared_ptr<const VarlenGroupOps> cuda_varlen_group_ops();

}  // namespace ringside::sp
