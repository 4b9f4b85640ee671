// Attention backend of training: runs each layer's attention over the sequence-parallel group, by
// the micro-batch's plan.
#pragma once

#include <memory>

#include "engine/nn/attention_backend.h"
#include "sp/attention/attention.h"

namespace ringside::engine {

// The softmax scale is 1 / sqrt(head_dim), as in all supported models.
// Collective over: the context's groups.
class SequenceParallelAttention final : public AttentionBackend {
 public:
  explicit SequenceParallelAttention(sp::AttentionContext context,
                                     std::shared_ptr<sp::KeptResults> kept = nullptr);

  at::Tensor attend(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                    const at::Tensor& v_sKD) override;
  std::unique_ptr<AttentionBackend> keeping(
      const std::shared_ptr<sp::KeptResults>& kept) const override;

 private:
  sp::AttentionContext context_;
  sp::AttentionOptions options_;
};

}  // namespace ringside::engine
