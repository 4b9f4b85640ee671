// KV transport: brings keys and values of other ring ranks to this one and returns their gradients,
// ring step by ring step. The next step's transfer overlaps the computation of the current one. A
// ring step is a plan step for a chunk of KV heads: p2p has one per ring rank, all-gather one per
// chunk.
//
// Shapes: S = rows of this rank's ring share, k = this rank's KV heads, c = KV heads of a ring
// step's chunk, m/g = rows of a ring step's KV/gradient buffer, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/attention/ring_step_kernels.h"
#include "sp/mesh/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// One pass over the ring steps, in order. The prepared plan and the communicator must outlive it.
// Collective over: the ring group.
class KvTransport {
 public:
  virtual ~KvTransport() = default;

  // Steps of one pass, of which each has a buffer of keys and values.
  virtual int64_t num_ring_steps() const = 0;
  virtual int64_t plan_step(int64_t ring_step) const = 0;  // which of the plan's steps
  // The heads that a ring step computes with.
  virtual const HeadChunk& chunk(int64_t ring_step) const = 0;

  // The KV buffer of a ring step. Starts the next step's transfer.
  // Shapes: kv_m2cD, k heads, then v heads, in the wire dtype.
  // Blocks: until the buffer has arrived.
  virtual at::Tensor load(int64_t ring_step) = 0;

  // Backward only: takes a ring step's gradient and starts sending the rows of other ranks. Rows
  // that no block touched must be zero.
  // Shapes: dkv_g2cD in the accumulation dtype; with one ring rank in any.
  // Blocks: until the gradients that were sent in the ring step before have arrived.
  virtual void add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) = 0;

  // The gradient of this rank's own rows, summed over all ranks: dkv_S2kD.
  // Blocks: until the last part has arrived.
  virtual at::Tensor finish() = 0;
};

// The transport of one pass. kv_S2kD: this rank's own rows, k heads, then v heads, in the wire
// dtype. impl: of the pass, forward or backward.
std::unique_ptr<KvTransport> make_kv_transport(const at::Tensor& kv_S2kD,
                                               const PreparedPlan& prepared, Communicator& ring,
                                               RingImpl impl);

// The rows `ranges` of a tensor one after another, contiguous. A single range of a contiguous
// tensor is a view of it.
at::Tensor take_rows(const at::Tensor& tensor, const std::vector<Range>& ranges);

// Adds `rows` to rows `ranges` of a tensor, in order.
// Throws: c10::Error when the ranges do not have as many rows.
void add_rows(at::Tensor& tensor, const std::vector<Range>& ranges, const at::Tensor& rows);

}  // namespace ringside::sp
