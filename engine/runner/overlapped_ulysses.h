// Attention backend of training with asynchronous Ulysses: each projection overlaps the exchange of
// the one before it.
#pragma once

#include <memory>

#include "engine/nn/attention_backend.h"
#include "sp/attention/attention.h"

namespace ringside::engine {

// Works with and without autograd.
// Collective over: the context's groups.
class OverlappedUlysses final : public AttentionBackend, public OverlappedAttention {
 public:
  // positions_S: of the whole ring share.
  // Shapes: int64 [share rows of the plan].
  // Throws: c10::Error on another shape or dtype.
  OverlappedUlysses(sp::AttentionContext context, at::Tensor positions_S,
                    std::shared_ptr<sp::KeptResults> kept = nullptr);

  OverlappedAttention* overlapped() override { return this; }

  // For tensors that are projected already; layers call the functions below instead.
  at::Tensor attend(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;
  std::unique_ptr<AttentionBackend> keeping(
      const std::shared_ptr<sp::KeptResults>& kept) const override;

  const at::Tensor& positions_S() const override { return positions_S_; }
  Heads project(const at::Tensor& hidden_sE, const Projection& q, const Projection& k,
                const Projection& v) override;
  at::Tensor attend_heads(const Heads& heads) override;
  at::Tensor project_out(const at::Tensor& out_ShD, const Projection& o) override;

 private:
  sp::AttentionContext context_;
  at::Tensor positions_S_;
  sp::AttentionOptions options_;
};

}  // namespace ringside::engine
