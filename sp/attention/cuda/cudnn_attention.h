// Causal attention of long documents by cuDNN, whose kernels for compute capability 9.0 and newer
// use instructions that ATen's FlashAttention 2 does not have.
//
// cuDNN makes a plan for each shape and keeps it. So that documents of many lengths share few
// plans, an entry is padded with zero rows behind its last one, which no row of its own sees.
//
// Shapes: n = packed rows of the call, h = query heads, K = KV heads (h a multiple of K), D = head
// dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "sp/attention/cuda/varlen_group_ops.h"

namespace ringside::sp {

// From this length on documents go to cuDNN. Forward and backward of packs of 32k and 128k tokens
// on an H200, beside FlashAttention 2 (tools/bench/results/gpu-2026-11-28.json): documents of 512
// rows 0.28 times as fast, of 2,048 1.13, of 4,096 1.39, of 8,192 1.49. What a plan for a new
// length costs was not measured.
inline constexpr int64_t kLeastCudnnRows = 4096;

// Whether cuDNN computes a call: q in bf16 or fp16, D a multiple of 8 up to 128, a causal mask over
// entries with as many keys as queries, a GPU that has the kernels, and an entry of at least
// `least_rows`, taken as the mean over the pairs of rows. Never when at::globalContext() demands
// deterministic algorithms: cuDNN sums dq in another order each run.
bool is_for_cudnn(const at::Tensor& q_nhD, const VarlenGroupCall& call,
                  int64_t least_rows = kLeastCudnnRows);

// As VarlenGroupOps::attend, for calls that is_for_cudnn() allows.
// Shapes: returns out_nhD in q's dtype and lse_hn in fp32, contiguous.
// Throws: c10::Error when cuDNN has no kernel for the shapes.
std::tuple<at::Tensor, at::Tensor> cudnn_attention(const at::Tensor& q_nhD, const at::Tensor& k_nKD,
                                                   const at::Tensor& v_nKD,
                                                   const VarlenGroupCall& call,
                                                   double softmax_scale);

// As VarlenGroupOps::attend_backward, likewise.
// Shapes: returns dq_nhD, dk_nKD, dv_nKD in q's dtype.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_nKD,
    const at::Tensor& v_nKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
    const VarlenGroupCall& call, double softmax_scale);

}  // namespace ringside::sp
