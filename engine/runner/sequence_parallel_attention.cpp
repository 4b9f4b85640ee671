#include "engine/runner/sequence_parallel_attention.h"

#include <cmath>
#include <utility>

namespace ringside::engine {

SequenceParallelAttention::SequenceParallelAttention(sp::AttentionContext context)
    : context_(std::move(context)),
      softmax_scale_(1.0 / std::sqrt(static_cast<double>(context_.plan().heads.head_dim))) {}

at::Tensor SequenceParallelAttention::attend(int64_t /*layer*/, const at::Tensor& q_sHD,
                                             const at::Tensor& k_sKD, const at::Tensor& v_sKD) {
  sp::AttentionOptions options;
  options.softmax_scale = softmax_scale_;
  return sp::attention(q_sHD, k_sKD, v_sKD, context_, options);
}

}  // namespace ringside::engine
