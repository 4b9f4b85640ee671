// Attention backend of training with asynchronous Ulysses: each projection overlaps the exchange of
// the one before it.
#pragma once

#include <memory>

#include "engine/nn/attention_backend.h"
#include "engine/runner/sequence_parallel_attention.h"
#include "sp/attention/attention.h"

namespace ringside::engine {

// Works with and without autograd.
// Collective over: the contexts' groups.
// Throws: as the functions of sp/heads and sp/attention that it calls, and as context_of().
// Source: the overlapped exchange of sp/heads/async_projection.h.
class OverlappedUlysses final : public AttentionBackend, public OverlappedAttention {
 public:
  // contexts: at least one. positions_S: of the whole ring share.
  // Shapes: int64 [share rows of the plans], or three components of them, [3, share rows].
  // Throws: c10::Error on another shape, or without a context.
  OverlappedUlysses(WindowContexts contexts, at::Tensor positions_S,
                    std::shared_ptr<sp::KeptResults> kept = nullptr);

  OverlappedAttention* overlapped() override { return this; }

  // For tensors that are projected already; layers call the functions below instead.
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;
  std::unique_ptr<AttentionBackend> keeping(
      const std::shared_ptr<sp::KeptResults>& kept) const override;

  const at::Tensor& positions_S() const override { return positions_S_; }
  Heads project(const at::Tensor& hidden_sE, const Projection& q, const Projection& k,
                const Projection& v) override;
  at::Tensor attend_heads(const AttentionSpec& spec, const Heads& heads) override;
  at::Tensor project_out(const at::Tensor& out_ShD, const Projection& o) override;

 private:
  // For what all contexts have in common.
  const sp::AttentionContext& any() const { return contexts_.begin()->second; }
  sp::AttentionOptions options(const AttentionSpec& spec) const {
    return {.softmax_scale = spec.softmax_scale, .sinks_H = spec.sinks_H, .kept = kept_};
  }

  WindowContexts contexts_;
  at::Tensor positions_S_;
  std::shared_ptr<sp::KeptResults> kept_;
};

}  // namespace ringside::engine
