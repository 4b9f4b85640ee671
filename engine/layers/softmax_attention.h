// Token mixer: softmax attention with grouped query heads and RoPE.
//
// With tensor parallelism a rank has the query heads that sp::split_heads() gives it, and the
// key/value heads that they read. Where a key/value head goes to several ranks, all of them have
// whole key and value projections and compute with the heads that they need.
//
// Shapes: s = tokens, E = hidden size, H = this rank's query heads, K = its key/value heads, D =
// head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"
#include "engine/layers/norm.h"
#include "engine/ops/qk_norm_rope.h"

namespace ringside::engine {

class SoftmaxAttention final : public TokenMixer {
 public:
  // Adds the weights of config.block(layer) to the table.
  SoftmaxAttention(const ModelConfig& config, int64_t layer, ParamTable& table);

  // With an overlapped backend the projections overlap the exchange of heads; its weights must be
  // plain.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TokenFlow flow() const override;
  TensorWidths tensor_widths() const override { return {hidden_, hidden_}; }
  Cost cost(const MixerShape& shape) const override;
  MixerWork work(const RankGrid& grid) const override;

 private:
  // Queries, then keys, then values of this rank's heads.
  // Shapes: x_sE of all tensor ranks' rows -> [s, (query outputs + 2 K) D].
  at::Tensor project(const at::Tensor& x_sE, const LayerPass& pass) const;
  // Attention with an output gate, with RoPE of a part of each head, or with joint norms.
  // Shapes: the projections -> [s, H D]; also plain().
  at::Tensor gated(const at::Tensor& qkv, const AttentionSpec& spec, const LayerPass& pass) const;
  at::Tensor plain(const at::Tensor& qkv, const AttentionSpec& spec, const LayerPass& pass) const;
  // Attention whose projections overlap the exchange of heads. This rank norms, rotates and attends
  // its own heads of all exchanged tokens.
  at::Tensor overlapped(const at::Tensor& normed_sE, const AttentionSpec& spec,
                        const LayerPass& pass, OverlappedAttention& attention) const;
  const RopeTables& rope(const LayerPass& pass) const {
    return no_rope_ ? pass.ropes.none : local_rope_ ? pass.ropes.local : pass.ropes.global;
  }
  // Norms of single heads.
  HeadNorms head_norms(const LayerPass& pass) const;
  // [s, N, D], normed all together if the layer does that.
  at::Tensor normed_together(const at::Tensor& x_sND, const std::optional<Norm>& norm,
                             const LayerPass& pass) const;
  // Why its projections cannot overlap the exchange of heads; "": they can.
  std::string overlap_problem() const;
  at::Tensor pair_components(const at::Tensor& x) const;
  Weight pair_components(const Weight& norm) const;

  int64_t layer_, hidden_, window_;
  bool local_rope_, no_rope_;
  sp::HeadShape shape_;  // of all heads, with this rank's part
  int64_t heads_, kv_heads_, head_dim_;
  double softmax_scale_;
  NormOptions norm_options_;
  SoftmaxAttentionConfig options_;
  bool fused_;
  bool shares_kv_;  // tensor ranks have whole key and value projections, k_ and v_
  Linear qkv_;      // or the queries alone
  std::optional<Linear> k_, v_;
  Linear o_;
  std::optional<Slot> sinks_;
  std::optional<Norm> q_norm_, k_norm_;
};

}  // namespace ringside::engine
