#include "engine/runner/sequence_parallel_attention.h"

#include <cmath>
#include <utility>

namespace ringside::engine {

SequenceParallelAttention::SequenceParallelAttention(sp::AttentionContext context,
                                                     std::shared_ptr<sp::KeptResults> kept)
    : context_(std::move(context)) {
  options_.softmax_scale = 1.0 / std::sqrt(static_cast<double>(context_.plan().heads.head_dim));
  options_.kept = std::move(kept);
}

at::Tensor SequenceParallelAttention::attend(int64_t /*layer*/, const at::Tensor& q_sHD,
                                             const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  return sp::attention(q_sHD, k_sKD, v_sKD, context_, options_);
}

std::unique_ptr<AttentionBackend> SequenceParallelAttention::keeping(
    const std::shared_ptr<sp::KeptResults>& kept) const {
  return std::make_unique<SequenceParallelAttention>(context_, kept);
}

}  // namespace ringside::engine
