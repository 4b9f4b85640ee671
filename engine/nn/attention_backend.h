// How a decoder layer attends. The decoder knows nothing of sharding or caches: training plugs in
// sequence-parallel attention, generation a KV cache.
// Shapes: s = tokens held by this rank, E = hidden size, H = query heads, K = key/value heads, D =
// head dim; S = tokens and h, k = heads of this rank after heads were traded for tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace ringside::engine {

class OverlappedAttention;

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Where this is not nullptr the layer leaves its projections to it, which are then computed while
  // heads are traded for tokens, and calls its functions instead of attend().
  virtual OverlappedAttention* overlapped() { return nullptr; }

  // Causal attention of one layer. q_sHD, k_sKD, v_sKD: same dtype, RoPE already applied.
  // Returns out_sHD in the same dtype, differentiable where autograd is on. May be collective over
  // the sequence-parallel group: then all of its ranks call it for the same layers in the same
  // order.
  virtual at::Tensor attend(int64_t layer, const at::Tensor& q_sHD, const at::Tensor& k_sKD,
                            const at::Tensor& v_sKD) = 0;
};

// The projections around attention and the exchange of heads as one (asynchronous Ulysses). All
// functions are collective over the sequence-parallel group, differentiable, and called in this
// order in each layer.
class OverlappedAttention {
 public:
  virtual ~OverlappedAttention() = default;

  struct Projection {
    at::Tensor weight;  // [out, in]
    std::optional<at::Tensor> bias;
  };
  struct Heads {
    at::Tensor q_ShD;
    at::Tensor k_SkD;
    at::Tensor v_SkD;
  };

  // int64 positions of the S tokens: what RoPE must turn q and k by.
  virtual const at::Tensor& positions_S() const = 0;

  virtual Heads project(const at::Tensor& hidden_sE, const Projection& q, const Projection& k,
                        const Projection& v) = 0;

  // Causal attention of this rank's heads, norms and RoPE applied. Returns out_ShD.
  virtual at::Tensor attend_heads(const Heads& heads) = 0;

  // out_ShD -> hidden_sE.
  virtual at::Tensor project_out(const at::Tensor& out_ShD, const Projection& o) = 0;
};

}  // namespace ringside::engine
