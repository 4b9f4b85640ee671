// How a decoder layer attends. The decoder knows nothing of sharding or caches: training plugs in
// sequence-parallel attention, generation a KV cache.
// Shapes: s = tokens held by this rank, H = query heads, K = key/value heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Causal attention of one layer. q_sHD, k_sKD, v_sKD: same dtype, RoPE already applied.
  // Returns out_sHD in the same dtype, differentiable where autograd is on. May be collective over
  // the sequence-parallel group: then all of its ranks call it for the same layers in the same
  // order.
  virtual at::Tensor attend(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                            const at::Tensor& v_sKD) = 0;
};

}  // namespace ringside::engine
