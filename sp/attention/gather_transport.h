// Ring attention by all-gather: every rank sends each other rank the rows that it needs, one chunk
// of KV heads at a time. The next chunk's transfer overlaps the computation of the current one.
// Gradients are sent directly to their owner in the accumulation dtype and summed there in rank
// order.
//
// Source: Llama 3's context parallelism.
#pragma once

#include <vector>

#include "sp/attention/kv_transport.h"

namespace ringside::sp {

class GatherTransport final : public KvTransport {
 public:
  // `prepared` and `ring` must outlive it. Transfers nothing yet.
  // Shapes: kv_S2kD: this rank's keys, then its values, in the wire dtype.
  // Collective over: the ring group.
  GatherTransport(const at::Tensor& kv_S2kD, const PreparedPlan& prepared, Communicator& ring);

  int64_t num_ring_steps() const override { return static_cast<int64_t>(plan_.head_chunks.size()); }
  // The last of the plan's steps: of both passes, or of the backward alone.
  int64_t plan_step(int64_t) const override { return plan_.backward_steps.begin; }
  const HeadChunk& chunk(int64_t ring_step) const override { return plan_.head_chunks[ring_step]; }
  at::Tensor load(int64_t ring_step) override;
  void add_gradient(int64_t ring_step, at::Tensor dkv_g2cD) override;
  at::Tensor finish() override;

 private:
  // Pieces of one chunk in transfer, by ring rank. This rank's own piece needs no transfer.
  struct Exchange {
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<Transfer>> transfers;
    void wait();
  };

  at::Tensor own_heads(const at::Tensor& x_S2kD, const HeadChunk& chunk) const;
  Exchange start(const std::vector<at::Tensor>& pieces, const std::vector<int64_t>& recv_rows,
                 const char* tag);
  Exchange start_gather(int64_t ring_step);
  void finish_gradient();

  const AttentionPlan& plan_;
  Communicator& ring_;
  at::Tensor own_kv_;
  GatherOrder order_;
  Exchange gathering_;
  at::Tensor own_gradient_;
  Exchange returning_;
  int64_t returning_step_ = -1;
};

}  // namespace ringside::sp
