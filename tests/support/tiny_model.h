// A decoder small enough to train in milliseconds, with grouped-query heads and query and key
// norms.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/models/decoder.h"

namespace ringside::test {

// Two layers of softmax attention and MLP.
inline engine::ModelConfig tiny_config(int64_t vocab_size = 19) {
  engine::ModelConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.attention.qk_norm = true;
  return config;
}

// Latent attention, in the second layer experts with a sigmoid router and a shared MLP.
inline engine::ModelConfig latent_config(int64_t vocab_size = 19) {
  engine::ModelConfig config = tiny_config(vocab_size);
  config.model_type = "deepseek_v3";
  config.attention.qk_norm = false;
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = 10;
  config.latent = {.q_rank = 9, .kv_rank = 7, .nope_dim = 6, .rope_dim = 4, .value_dim = 8};
  config.experts = {.count = 6,
                    .per_token = 3,
                    .intermediate_size = 12,
                    .normalise_weights = true,
                    .router = engine::RouterKind::kSigmoid,
                    .groups = 3,
                    .kept_groups = 2,
                    .weight_factor = 1.5,
                    .shared_intermediate_size = 12};
  const auto block = [](engine::ChannelMixerKind channel_mixer) {
    return engine::BlockSpec{engine::TokenMixerKind::kLatentAttention, channel_mixer};
  };
  config.blocks = {block(engine::ChannelMixerKind::kMlp),
                   block(engine::ChannelMixerKind::kExperts)};
  return config;
}

// As GPT-OSS: windows in turns, sinks, biases, and experts whose weights are stacked.
inline engine::ModelConfig stacked_config(int64_t vocab_size = 19) {
  engine::ModelConfig config = tiny_config(vocab_size);
  config.model_type = "gpt_oss";
  config.attention.qk_norm = false;
  config.attention.qkv_bias = config.attention.o_bias = config.attention.sinks = true;
  config.experts = {.kind = engine::ExpertKind::kClamped,
                    .count = 5,
                    .per_token = 2,
                    .intermediate_size = 12,
                    .gate_limit = 7.0,
                    .gate_alpha = 1.702};
  config.blocks = {{.channel_mixer = engine::ChannelMixerKind::kExperts, .window = 6},
                   {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

// Gated delta nets and, in the last layer, gated attention with RoPE of half of each head. With
// experts: in the second layer, beside a shared MLP with a gate.
inline engine::ModelConfig hybrid_config(bool experts, int64_t vocab_size = 19) {
  engine::ModelConfig config = tiny_config(vocab_size);
  config.model_type = experts ? "qwen3_next" : "qwen3_5_text";
  config.num_hidden_layers = 3;
  config.norms_plus_one = config.attention.gated = true;
  config.attention.rotary_dim = 4;
  config.delta_net = {{2, 4, 6, 5, 4}, /*grouped_projections=*/experts};
  if (experts) {
    config.experts = {.count = 5,
                      .per_token = 2,
                      .intermediate_size = 12,
                      .normalise_weights = true,
                      .shared_intermediate_size = 10,
                      .gated_shared = true};
  }
  const auto second = experts ? engine::ChannelMixerKind::kExperts : engine::ChannelMixerKind::kMlp;
  config.blocks = {{engine::TokenMixerKind::kGatedDelta},
                   {engine::TokenMixerKind::kGatedDelta, second},
                   {engine::TokenMixerKind::kSoftmaxAttention}};
  return config;
}

// A whole decoder on the CPU whose weights follow from the seed. std: of the weights.
inline engine::Decoder random_decoder(const engine::ModelConfig& config, at::ScalarType dtype,
                                      uint64_t seed, double std = 0.2) {
  engine::Decoder decoder(config, dtype);
  decoder.init_random(seed, std);
  return decoder;
}

// Logits of hidden states [n, E] without autograd: [n, V] in fp32, of fp64 models in fp64.
inline at::Tensor logits_of(const engine::Decoder& decoder, const at::Tensor& hidden_nE) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits_nV = at::linear(hidden_nE, decoder.materialize().head_VE.value);
  return decoder.compute_dtype() == at::kDouble ? logits_nV : logits_nV.to(at::kFloat);
}

// A decoder with the parameters of another, in other storage.
inline engine::Decoder stored_as(const engine::Decoder& from,
                                 const engine::WeightStorage& storage) {
  std::size_t next = 0;
  return {from.config(), from.context(), storage, [&](engine::ParamUnit& unit) {
            unit.flat().detach().copy_(from.units()[next++]->gathered().gather_flat());
          }};
}

}  // namespace ringside::test
