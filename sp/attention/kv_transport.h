// Brings the keys and values of other ring ranks to this one and their gradients back, ring_step by
// ring_step, the next ring_step's transfer under way while a ring_step is computed. A ring_step is
// a plan step for a chunk of KV heads: p2p has one ring_step per ring rank, all-gather one per
// chunk of heads. Shapes: S = rows of this rank's ring share, k = this rank's KV heads, c = KV
// heads of a ring_step's chunk, m/g = rows of a ring_step's KV/gradient buffer, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sp/mesh/communicator.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// One pass over the ring_steps, in order. Collective over the ring group; the plan and the
// communicator must outlive it.
class KvTransport {
 public:
  virtual ~KvTransport() = default;

  virtual int64_t num_ring_steps() const = 0;
  virtual const RingStep& step(int64_t ring_step) const = 0;
  virtual const HeadChunk& chunk(int64_t ring_step) const = 0;

  // kv_m2cD of a ring_step (k heads, then v heads), in the wire dtype. Blocks until it is there,
  // and starts the next one's transfer.
  virtual at::Tensor load(int64_t ring_step) = 0;

  // Backward only: takes a ring_step's gradient dkv_g2cD, in the accumulation dtype, and starts
  // sending what belongs to others. Rows that no block touched must be zero.
  virtual void add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) = 0;

  // The gradient of this rank's own rows, dkv_S2kD, from all ranks. Blocks until the last has come.
  virtual at::Tensor finish() = 0;
};

// kv_S2kD: this rank's own rows, k heads, then v heads.
std::unique_ptr<KvTransport> make_kv_transport(const at::Tensor& kv_S2kD, const AttentionPlan& plan,
                                               Communicator& ring);

// Rows `ranges` of a tensor one after another; the tensor itself when that is all of it.
at::Tensor take_rows(const at::Tensor& tensor, const std::vector<Range>& ranges);

// Adds `rows` to rows `ranges` of a tensor, in order.
void add_rows(at::Tensor& tensor, const std::vector<Range>& ranges, const at::Tensor& rows);

}  // namespace ringside::sp
