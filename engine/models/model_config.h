// Shape of a decoder, as in config.json of a Hugging Face directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/nn/rope_scaling.h"

namespace ringside::engine {

// Experts of the layers that have them in place of an MLP.
struct ExpertsConfig {
  int64_t count = 0;
  int64_t per_token = 0;
  int64_t intermediate_size = 0;   // of one expert
  bool normalise_weights = false;  // a token's routing weights sum to 1
  bool operator==(const ExpertsConfig&) const = default;
};

enum class TokenMixer { kSoftmaxAttention };
enum class ChannelMixer { kMlp, kExperts };

// What one layer is made of.
struct BlockSpec {
  TokenMixer token_mixer = TokenMixer::kSoftmaxAttention;
  ChannelMixer channel_mixer = ChannelMixer::kMlp;
  bool operator==(const BlockSpec&) const = default;
};

struct ModelConfig {
  std::string model_type = "qwen3";
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2.5, and Llama with attention_bias
  bool o_bias = false;    // Llama and Qwen3 with attention_bias
  bool mlp_bias = false;  // Llama with mlp_bias
  bool qk_norm = false;   // Qwen3: RMSNorm of each query and key head before RoPE
  ExpertsConfig experts;
  // Of each layer. Empty: all layers are alike, with experts if there are any.
  std::vector<BlockSpec> blocks;
  // Computes norms and routers in fp32 in fp64 models too. Not in config.json. transformers always
  // does so, and comparisons with it below 1e-5 need the same; otherwise fp64 models use fp64
  // throughout.
  bool fp32_norms = false;
  // Longest document that the model may be given; 0 = open. Not in config.json. rope_type longrope
  // chooses its factors by it.
  int64_t max_document_tokens = 0;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;

  // Throws: std::out_of_range when blocks are given, but none for `layer`.
  BlockSpec block(int64_t layer) const;
  bool has_experts(int64_t layer) const {
    return block(layer).channel_mixer == ChannelMixer::kExperts;
  }

  // The layers with experts, ascending.
  std::vector<int64_t> expert_layers() const;

  RopeSettings rope() const {
    return {head_dim, rope_theta, rope_scaling, max_position_embeddings, max_document_tokens};
  }
};

// Positions that the model is meant for: max_position_embeddings, stretched by rope types whose
// config.json keeps the length before scaling there (linear; yarn: factor x original length), and
// at most max_document_tokens. vLLM derives the same.
int64_t num_positions(const ModelConfig& config);

// Length above which a document's log-probs would be wrong, not just untrained; 0 = none. It is
// max_document_tokens, and max_position_embeddings with rope_type dynamic.
int64_t longest_exact_document(const ModelConfig& config);

}  // namespace ringside::engine
