// Device operations of a ring step whose blocks run in varlen groups (varlen_groups.h). kernels.h
// has those of CUDA.
//
// Shapes: n/m = packed query/key rows of a varlen group, S = rows of a share or buffer, H/h = heads
// of the whole/of the part, K = KV heads (h a multiple of K), D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "sp/attention/cuda/varlen_groups.h"
#include "sp/attention/lse_merge.h"
#include "sp/attention/ring_step_kernels.h"

namespace ringside::sp {

// Row moves (RowMove) on the device.
struct DeviceMoves {
  at::Tensor table;  // [moves, 3] int64, contiguous: first, from, to
  int64_t rows = 0;
};

// Row sums (RowSum) on the device.
struct DeviceSums {
  at::Tensor sums;     // [sums, 4] int64, contiguous: first, to, sources_begin, sources_end
  at::Tensor sources;  // [sources] int64, contiguous
  int64_t rows = 0;
};

// The integers of a varlen call. `cumulative_*`: int32 on the device, [blocks + 1], from 0 to the
// packed rows; `*_begins`: the same on the host.
struct VarlenGroupCall {
  at::Tensor cumulative_query;
  at::Tensor cumulative_key;
  std::vector<int32_t> query_begins;
  std::vector<int32_t> key_begins;
  int64_t max_query = 0;
  int64_t max_key = 0;
  VarlenGroupMask mask;
};

// A call of its own, outside any plan, for tests and benchmarks. Block b has the rows queries[b]
// and keys[b].
// Blocks: until the tables are on the device.
// Throws: std::invalid_argument as cumulative_rows().
VarlenGroupCall make_varlen_call(const std::vector<Range>& queries, const std::vector<Range>& keys,
                                 VarlenGroupMask mask, at::Device device);

// All calls are asynchronous on the device's current stream and leave their inputs unchanged,
// unless said otherwise. Tables are not checked: the caller must pass ranges inside the tensors.
// Throws: c10::Error on tensors of another device, dtype or shape.
// Thread safety: any thread.
class VarlenGroupOps {
 public:
  virtual ~VarlenGroupOps() = default;

  // The kind of device that its tensors are on.
  virtual at::DeviceType device() const = 0;

  // The dtype in which attend() and attend_backward() want their tensors, given the wire's.
  // Throws: c10::Error when there are none for it.
  virtual at::ScalarType compute_dtype(at::ScalarType wire_dtype) const = 0;

  // Attention of the call's entries, each to its own keys.
  // Shapes: returns out_nhD in q's dtype and lse_hn in the accumulation dtype.
  // Throws: c10::Error on an unsupported head dim.
  virtual std::tuple<at::Tensor, at::Tensor> attend(const at::Tensor& q_nhD,
                                                    const at::Tensor& k_mKD,
                                                    const at::Tensor& v_mKD,
                                                    const VarlenGroupCall& call,
                                                    double softmax_scale) const = 0;

  // Its gradients. out and lse are those of all keys; dout is the gradient of that output.
  // Shapes: returns dq_nhD, dk_mKD, dv_mKD in q's dtype.
  virtual std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
      const at::Tensor& dout_nhD, const at::Tensor& q_nhD, const at::Tensor& k_mKD,
      const at::Tensor& v_mKD, const at::Tensor& out_nhD, const at::Tensor& lse_hn,
      const VarlenGroupCall& call, double softmax_scale) const = 0;

  // rows_S... -> packed rows, contiguous, [moves.rows, ...]; any dtype.
  virtual at::Tensor gather_rows(const at::Tensor& rows, const DeviceMoves& moves) const = 0;

  // whole_SHD[to, head_begin + j] += the sum of part_mhD[from, j] over the row's sources, in their
  // order. whole in the accumulation dtype, heads and rows contiguous.
  virtual void add_rows(at::Tensor& whole_SHD, const at::Tensor& part_mhD, const DeviceSums& sums,
                        int64_t head_begin) const = 0;

  // merge_rows merges the part into rows and heads of `whole` by log-sum-exp (lse_merge.h);
  // write_rows overwrites them. part.out is out_nhD and part.lse lse_hn, as attend returns them.
  // Shapes: whole is out_SHD, lse_SH, contiguous, in the accumulation dtype.
  virtual void merge_rows(PartialAttention& whole, const PartialAttention& part,
                          const DeviceMoves& moves, int64_t head_begin) const = 0;
  virtual void write_rows(PartialAttention& whole, const PartialAttention& part,
                          const DeviceMoves& moves, int64_t head_begin) const = 0;
};

// Ring step kernels over these operations: one varlen call per varlen group and head group. Rows of
// a varlen group that are already consecutive are used in place; others are gathered. Where one
// call covers the whole plan, its results are returned as they are. Sums and merges run in the
// order of the varlen groups, so results are deterministic when attend and attend_backward are.
std::shared_ptr<const RingStepKernels> varlen_group_kernels(
    std::shared_ptr<const VarlenGroupOps> ops);

}  // namespace ringside::sp
