// Attention backend of a decoder layer. The decoder has no notion of shards or caches: training
// uses sequence-parallel attention, generation a KV cache.
//
// Shapes: s = tokens held by this rank, E = hidden size, H = query heads, K = key/value heads, D =
// head dim; S = tokens and h, k = heads of this rank after the exchange of tokens for heads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>

#include "engine/params/weight.h"
#include "sp/mesh/kept_results.h"

namespace ringside::engine {

class OverlappedAttention;
class RecurrentBackend;

// What attention of one layer needs beside q, k and v.
struct AttentionSpec {
  int64_t layer = 0;
  int64_t window = 0;  // a token attends to itself and the window - 1 tokens before it; 0 = to all
  double softmax_scale = 1.0;
  // A logit per query head that joins every softmax, in fp32 (fp64 for doubles); undefined = none.
  at::Tensor sinks_H;
};

// Attention of all layers of one forward and its backward.
// Thread safety: none.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // If not nullptr, the layer calls these functions instead of attend(). They compute the
  // projections while heads and tokens are exchanged.
  virtual OverlappedAttention* overlapped() { return nullptr; }

  // If true, latent attention passes its latents, not the keys and values of every head: q has
  // kv_rank + rope_dim components for each head, k and v are the same tensor of one head, and of
  // the result the first kv_rank components are used. The scale is the same.
  virtual bool attends_latents() const { return false; }

  // Of layers that pass a state along the document; nullptr: there can be none.
  virtual RecurrentBackend* recurrent() { return nullptr; }

  // Causal attention of one layer. Differentiable where autograd is on.
  // Shapes: q_sHD, k_sKD, v_sKD: same dtype, RoPE already applied; returns out_sHD in the same
  // dtype.
  // Collective over: the sequence-parallel group, in backends that have one: all ranks then call it
  // for the same layers in the same order.
  virtual at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_sHD,
                            const at::Tensor& k_sKD, const at::Tensor& v_sKD) = 0;

  // This attention for one layer that runs twice, in the forward and again in the backward. The
  // first run puts its results into `kept`. The second takes them from there: it computes no
  // attention and sends nothing.
  // Throws: c10::Error in backends that keep no results.
  virtual std::unique_ptr<AttentionBackend> keeping(
      const std::shared_ptr<sp::KeptResults>& /*kept*/) const {
    TORCH_CHECK(false, "attention backend: it keeps no results for a recomputation");
  }
};

// Projections around attention, overlapped with the exchange of heads (asynchronous Ulysses).
// Differentiable. Called in this order in each layer.
// Collective over: the sequence-parallel group.
class OverlappedAttention {
 public:
  virtual ~OverlappedAttention() = default;

  struct Projection {
    Weight weight;  // [out, in], plain
    Weight bias;    // may be undefined
  };
  struct Heads {
    at::Tensor q_ShD;
    at::Tensor k_SkD;
    at::Tensor v_SkD;
  };

  // int64 positions of the S tokens, for RoPE of q and k.
  virtual const at::Tensor& positions_S() const = 0;

  // Queries, keys and values of this rank's heads for all tokens of its ring share, before norms
  // and RoPE.
  // Shapes: hidden [s, E]; returns [S, h, D], [S, k, D], [S, k, D].
  virtual Heads project(const at::Tensor& hidden_sE, const Projection& q, const Projection& k,
                        const Projection& v) = 0;

  // Causal attention of this rank's heads; norms and RoPE are applied already.
  // Shapes: returns out_ShD.
  virtual at::Tensor attend_heads(const AttentionSpec& spec, const Heads& heads) = 0;

  // The output projection.
  // Shapes: out_ShD -> hidden_sE.
  virtual at::Tensor project_out(const at::Tensor& out_ShD, const Projection& o) = 0;
};

}  // namespace ringside::engine
