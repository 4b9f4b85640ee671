// Kernels of a device for ring attention: run the blocks of one plan step for one chunk of heads.
// Transfers and the places of results are the same on every device and are decided elsewhere.
//
// Shapes: S = rows of the ring share, h/k = this rank's query/KV heads, c = KV heads of the chunk,
// m = rows of the KV buffer, g = rows of the gradient buffer, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/attention/lse_merge.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// A ring_step's work, and the numbers that every block of it uses.
struct RingStepCall {
  const RingStep& step;
  const HeadChunk& chunk;
  int64_t window = 0;
  double softmax_scale = 1.0;
};

// What the backward needs of the queries' side, all [S, h, D] but lse_Sh.
struct QuerySide {
  at::Tensor dout_ShD;
  at::Tensor q_ShD;
  at::Tensor out_ShD;
  at::Tensor lse_Sh;  // accumulation dtype
};

// Dtype of partial outputs, LSE and gradients: fp64 for doubles, else fp32.
at::ScalarType accumulation_dtype(at::ScalarType wire_dtype);

class RingStepKernels {
 public:
  virtual ~RingStepKernels() = default;

  virtual at::DeviceType device() const = 0;

  // The dtype in which forward() and backward() want q, kv, dout and out, given the tensors' own.
  virtual at::ScalarType compute_dtype(at::ScalarType wire_dtype) const = 0;

  // Computes the ring_step's blocks and merges them into result (out_ShD, lse_Sh in the
  // accumulation dtype, contiguous); blocks without `merge` initialise their rows. kv_m2cD: k
  // heads, then v heads.
  virtual void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
                       PartialAttention& result) const = 0;

  // Adds the blocks' gradients to dq_ShD and dkv_g2cD, both in the accumulation dtype.
  virtual void backward(const RingStepCall& call, const QuerySide& side, const at::Tensor& kv_m2cD,
                        at::Tensor& dq_ShD, at::Tensor& dkv_g2cD) const = 0;
};

// Kernels over ATen's CPU flash attention, for fp64, fp32 and bf16 tensors. They compute in the
// accumulation dtype.
std::shared_ptr<const RingStepKernels> cpu_kernels();

}  // namespace ringside::sp
