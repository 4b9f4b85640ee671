// Point-to-point ring with two KV buffers: the next buffer's transfer starts before the
// computation. The gradient of a share's KV starts at its first remote rank, follows the KV, and is
// completed by its owner: R-1 hops in the accumulation dtype.
//
// Source: Liu et al. 2023, Ring Attention.
#pragma once

#include "sp/attention/kv_transport.h"

namespace ringside::sp {

class RingTransport final : public KvTransport {
 public:
  // `prepared` and `ring` must outlive it.
  // Shapes: kv_S2kD: this rank's keys, then its values, in the wire dtype.
  RingTransport(const at::Tensor& kv_S2kD, const PreparedPlan& prepared, Communicator& ring);

  int64_t num_ring_steps() const override { return plan_.ring_size(); }
  int64_t plan_step(int64_t ring_step) const override { return ring_step; }
  const HeadChunk& chunk(int64_t) const override { return plan_.head_chunks.front(); }
  at::Tensor load(int64_t ring_step) override;
  void add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) override;
  at::Tensor finish() override;

 private:
  int64_t next_rank() const { return (plan_.ring_rank + 1) % plan_.ring_size(); }
  int64_t previous_rank() const {
    return (plan_.ring_rank - 1 + plan_.ring_size()) % plan_.ring_size();
  }
  std::unique_ptr<Transfer> pass_on(const at::Tensor& send, at::Tensor& receive, const char* tag);

  const AttentionPlan& plan_;
  Communicator& ring_;
  at::Tensor current_;
  at::Tensor next_;
  std::unique_ptr<Transfer> kv_transfer_;
  at::Tensor own_gradient_;
  at::Tensor incoming_gradient_;  // for the owner of the next KV
  std::unique_ptr<Transfer> gradient_transfer_;
};

}  // namespace ringside::sp
