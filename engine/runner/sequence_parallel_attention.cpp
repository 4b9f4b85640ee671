#include "engine/runner/sequence_parallel_attention.h"

#include <utility>

namespace ringside::engine {

const sp::AttentionContext& context_of(const WindowContexts& contexts, int64_t window) {
  const auto found = contexts.find(window);
  TORCH_CHECK(found != contexts.end(), "attention: no plan for a layer with a window of ", window);
  return found->second;
}

SequenceParallelAttention::SequenceParallelAttention(WindowContexts contexts,
                                                     std::shared_ptr<RecurrentBackend> recurrent,
                                                     std::shared_ptr<sp::KeptResults> kept)
    : contexts_(std::move(contexts)), recurrent_(std::move(recurrent)), kept_(std::move(kept)) {}

at::Tensor SequenceParallelAttention::attend(const AttentionSpec& spec, const at::Tensor& q_sHD,
                                             const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  return sp::attention(
      q_sHD, k_sKD, v_sKD, context_of(contexts_, spec.window),
      {.softmax_scale = spec.softmax_scale, .sinks_H = spec.sinks_H, .kept = kept_});
}

std::unique_ptr<AttentionBackend> SequenceParallelAttention::keeping(
    const std::shared_ptr<sp::KeptResults>& kept) const {
  return std::make_unique<SequenceParallelAttention>(contexts_, recurrent_, kept);
}

}  // namespace ringside::engine
