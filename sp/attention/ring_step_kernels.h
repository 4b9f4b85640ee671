// Kernels of a device for ring attention. They prepare a plan once; the prepared plan then runs the
// blocks of its steps for every layer and both passes. Transfers and the places of results are the
// same on every device and are decided elsewhere.
//
// Shapes: S = rows of the ring share, h/k = this rank's query/KV heads, c = KV heads of the chunk,
// m = rows of the KV buffer, g = rows of the gradient buffer, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <memory>

#include "sp/attention/index_tables.h"
#include "sp/attention/lse_merge.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// A step of the plan for a chunk of heads.
struct RingStepCall {
  int64_t step = 0;  // of the plan's steps
  const HeadChunk& chunk;
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

// The order of an all-gather's buffer, on the device; undefined where the rows arrive in it.
struct GatherOrder {
  at::Tensor source_m;      // AttentionPlan::gather.source
  at::Tensor buffer_row_m;  // its inverse
};

// A plan with all that its device needs beside the layers' tensors: index tables and masks. Made
// once for a micro-batch by RingStepKernels::prepare(), never changed.
// Blocks: never on CUDA, where work is queued on the current stream.
// Thread safety: any thread.
class PreparedPlan {
 public:
  virtual ~PreparedPlan() = default;
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;

  const AttentionPlan& plan() const { return *plan_; }
  // Device and dtype of q, k and v as they are passed to attention().
  at::Device device() const { return device_; }
  at::ScalarType wire_dtype() const { return wire_dtype_; }
  const GatherOrder& gather_order() const { return gather_order_; }

  // The dtype in which forward() and backward() want q, kv, dout and out.
  virtual at::ScalarType compute_dtype() const = 0;

  // Computes the step's blocks and merges them into the result, which is undefined before the first
  // call of a pass. Blocks without `merge` initialise their rows.
  // Shapes: kv_m2cD: k heads, then v heads. result: out_ShD in the accumulation or the compute
  // dtype, lse_Sh in the accumulation dtype.
  virtual void forward(const RingStepCall& call, const at::Tensor& q_ShD, const at::Tensor& kv_m2cD,
                       PartialAttention& result) const = 0;

  // Adds the blocks' gradients to dq_ShD, which is undefined before the first call of a pass, and
  // returns those of the keys and values, dkv_g2cD.
  // Shapes: both in the accumulation dtype; with one ring rank also in the compute dtype.
  virtual at::Tensor backward(const RingStepCall& call, const QuerySide& side,
                              const at::Tensor& kv_m2cD, at::Tensor& dq_ShD) const = 0;

 protected:
  // The derived class adds its tables to tables_ and then calls upload_tables().
  PreparedPlan(std::shared_ptr<const AttentionPlan> plan, const at::TensorOptions& wire);
  // Sends tables_ to the device. Call it once.
  // Blocks: never.
  void upload_tables();

  IndexTables<int64_t> tables_;

 private:
  std::shared_ptr<const AttentionPlan> plan_;
  at::Device device_;
  at::ScalarType wire_dtype_;
  bool reorder_ = false;    // the received rows are not in the buffer's order
  std::size_t source_ = 0;  // tables of GatherOrder
  std::size_t buffer_row_ = 0;
  GatherOrder gather_order_;
};

// Thread safety: any thread.
class RingStepKernels {
 public:
  virtual ~RingStepKernels() = default;

  // The kind of device that they compute on.
  virtual at::DeviceType device() const = 0;

  // The plan with its tables on the device. wire: device and dtype of q, k and v.
  // Blocks: never; tables go to the device on its current stream.
  // Throws: c10::Error on another kind of device, and on CUDA on a dtype other than bf16, fp16,
  // fp32 and fp64.
  virtual std::shared_ptr<const PreparedPlan> prepare(std::shared_ptr<const AttentionPlan> plan,
                                                      const at::TensorOptions& wire) const = 0;
};

// Kernels over block_attention(), for fp64, fp32 and bf16 tensors. They compute in the accumulation
// dtype. multiplies_bf16: bf16 is multiplied as it is where the processor does so
// (has_bf16_tiles()), which is faster on some processors.
std::shared_ptr<const RingStepKernels> cpu_kernels(bool multiplies_bf16 = false);

}  // namespace ringside::sp
