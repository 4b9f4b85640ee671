// Token mixer: latent attention (MLA). Keys and values are made from one latent a token.
//
// With tensor parallelism the latents of a rank's own rows are made by whole projections and then
// gathered, which are fewer bytes than hidden states; the up-projections are cut by heads.
//
// Shapes: s = tokens, E = hidden size, H = this rank's heads, D = head dim; C = latent, N and R =
// components of a head without and with RoPE, V = those of a value. Source: DeepSeek-V2
// (section 2.1); transformers, DeepseekV3Attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"
#include "engine/layers/norm.h"

namespace ringside::engine {

class LatentAttention final : public TokenMixer {
 public:
  // Adds the weights of config.block(layer) to the table.
  // Throws: c10::Error on components that do not add up to a head, or fewer key heads than heads.
  LatentAttention(const ModelConfig& config, int64_t layer, ParamTable& table);

  // With a backend that attends latents, the up-projection of keys is applied to the queries and
  // that of values to the result.
  // Throws: c10::Error with an overlapped backend.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TokenFlow flow() const override;
  TensorWidths tensor_widths() const override;
  Cost cost(const MixerShape& shape) const override;
  MixerWork work(const RankGrid& grid) const override;

 private:
  // What the latents of a token are made of before the up-projections.
  struct Down {
    at::Tensor query;      // normed latent, or the hidden state where queries have none
    at::Tensor latent_sC;  // normed
    at::Tensor k_rope_sR;  // before RoPE
  };
  struct Latents {
    at::Tensor latent_sC;  // normed
    at::Tensor q_nope_sHN;
    at::Tensor q_rope_sHR;
    at::Tensor k_rope_s1R;
  };
  // Of this rank's rows.
  Down project_down(const at::Tensor& normed_sE, const LayerPass& pass) const;
  // Of the rows of all tensor ranks.
  Down gathered(const Down& own, const LayerPass& pass) const;
  Latents turn(const Down& down, const at::Tensor& q_sHD, const LayerPass& pass) const;
  // Both return [s, H, V]: attention with keys and values of every head, and on the latents.
  at::Tensor attend_heads(const Latents& in, const LayerPass& pass) const;
  at::Tensor attend_latents(const Latents& in, const LayerPass& pass) const;
  AttentionSpec spec() const { return {layer_, 0, softmax_scale_, {}}; }

  int64_t layer_, hidden_;
  sp::HeadShape shape_;  // of all heads, with this rank's part
  int64_t heads_, head_dim_;
  double softmax_scale_;
  LatentAttentionConfig latent_;
  std::optional<Linear> q_a_;
  std::optional<Norm> q_a_norm_;
  Linear q_b_, kv_a_;
  Norm kv_a_norm_;
  Linear kv_b_, o_;
};

}  // namespace ringside::engine
