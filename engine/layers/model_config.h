// Shape of a decoder, as in config.json of a Hugging Face directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/layers/vision_config.h"
#include "engine/nn/rope_scaling.h"
#include "engine/ops/norm_options.h"
#include "sp/plan/state_plan.h"

namespace ringside::engine {

// kPlain: SwiGLU without biases, each expert with tensors of its own. kClamped: GPT-OSS, with
// biases, clamped gates and a router whose weights are those of the chosen experts alone; all
// experts of a layer are one tensor.
enum class ExpertKind { kPlain, kClamped };
// Scores of experts. kSigmoid also has a correction for the choice alone, which is not trained.
enum class RouterKind { kSoftmax, kSigmoid };

// Experts of the layers that have them in place of an MLP.
struct ExpertsConfig {
  ExpertKind kind = ExpertKind::kPlain;
  int64_t count = 0;
  int64_t per_token = 0;
  int64_t intermediate_size = 0;   // of one expert
  bool normalise_weights = false;  // a token's routing weights sum to 1
  RouterKind router = RouterKind::kSoftmax;
  // Of the sigmoid router: groups of adjacent experts, those that stay in a token's choice, and the
  // factor on the weights.
  int64_t groups = 1;
  int64_t kept_groups = 1;
  double weight_factor = 1.0;
  int64_t shared_intermediate_size = 0;  // of the MLP that every token uses beside its experts
  bool gated_shared = false;             // Qwen3-Next: times the sigmoid of a gate
  // Of clamped experts: the bound of gate and up, and the factor in the gate's sigmoid.
  double gate_limit = 0.0;
  double gate_alpha = 0.0;
  bool block_sparse_names = false;  // MiniMax-M2: tensors are named as Mixtral's
  bool operator==(const ExpertsConfig&) const = default;
};

// Softmax attention, beside its heads.
struct SoftmaxAttentionConfig {
  bool qkv_bias = false;       // Qwen2.5, and Llama with attention_bias
  bool o_bias = false;         // Llama and Qwen3 with attention_bias
  bool qk_norm = false;        // Qwen3 and Gemma 3: RMSNorm of each query and key head before RoPE
  bool joint_qk_norm = false;  // OLMo 2: RMSNorm of all query heads together, and of all key heads
  bool sinks = false;          // GPT-OSS: a learned logit per query head joins every softmax
  int64_t query_scalar = 0;    // scores are divided by its root; 0 = head_dim
  // Longest document for which other programs compute the same attention; 0 = any
  // (dual_chunk_attention_config of Qwen2.5-1M).
  int64_t plain_tokens = 0;
  // Qwen3-Next: q_proj also has a gate for each query head, whose sigmoid multiplies the output.
  bool gated = false;
  int64_t rotary_dim = 0;  // first components of each head that RoPE turns; 0 = all
  bool operator==(const SoftmaxAttentionConfig&) const = default;
};

// Latent attention of the layers that have it (MLA). A head's queries and keys have nope_dim
// components without RoPE and rope_dim ones with it: head_dim together.
struct LatentAttentionConfig {
  int64_t q_rank = 0;  // of the queries' latent; 0: queries are projected from the hidden state
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;
  int64_t rope_dim = 0;
  int64_t value_dim = 0;         // at most head_dim
  bool rope_interleaved = true;  // the pairs that RoPE turns lie side by side
  bool bias = false;             // of the projections to latents and of the output
  bool operator==(const LatentAttentionConfig&) const = default;
};

// Gated delta net of the layers that have it.
struct DeltaNetConfig {
  sp::StateShape shape;
  // One projection has q, k, v and the gate of each head group side by side, as in Qwen3-Next. Else
  // each has a projection of its own, as in Qwen3.5.
  bool grouped_projections = false;
  bool operator==(const DeltaNetConfig&) const = default;
};

// How the files hold the experts of a layer: an expert's tensors for themselves, or those of all
// experts as two tensors, [experts, outputs, inputs] or [experts, inputs, outputs].
enum class ExpertStacks { kNone, kOutputsFirst, kInputsFirst };

// Layers of a model's files that predict tokens further ahead (multi-token prediction).
struct FurtherTokensConfig {
  int64_t layers = 0;
  // Beginning of their tensors' names; empty: they are layers behind the others (DeepSeek-V3).
  std::string part;
  // What config.json says of them: keys and their values as JSON.
  std::vector<std::pair<std::string, std::string>> fields = {};
  bool operator==(const FurtherTokensConfig&) const = default;
};

// What a model's files hold beside it, and under which names they hold the model.
struct OnDiskConfig {
  std::string trunk = "model.";  // beginning of all names but the head's
  std::string head = "lm_head.weight";
  std::string modules = "model.";       // in place of trunk, in transformers' names of modules
  std::string tower = "model.visual.";  // beginning of all names of the vision tower
  // Other beginnings of names that files of such models have, with those that they stand for.
  std::vector<std::pair<std::string, std::string>> other_names = {};
  ExpertStacks stacks = ExpertStacks::kNone;
  // Written again as the files of the model that training began with have them (KeptTensors).
  FurtherTokensConfig further = {};
  // The layer that predicts one further token is a part of the model: it is loaded, trained and
  // saved as the others. Not in config.json.
  bool predicts_further = false;
  // Beginnings of the names of other tensors that are not loaded and not written either.
  std::vector<std::string> parts_left_out = {};
  // Of the text part of a multimodal model: the whole config.json, as JSON. The part's fields are
  // in its text_config, or beside those of the other parts if it has none.
  std::string multimodal_json;
  // Fields of config.json that change nothing and were passed over.
  std::vector<std::string> fields_passed_over = {};
  bool operator==(const OnDiskConfig&) const = default;
};

// The parts of which a layer is made.
enum class TokenMixerKind { kSoftmaxAttention, kLatentAttention, kGatedDelta };
enum class ChannelMixerKind { kMlp, kExperts, kSquaredReluMlp };
enum class GateActivation { kSilu, kGeluTanh };

// Where a layer has norms: before each mixer, of what each mixer adds to the residual stream, or
// both (Gemma 3).
enum class NormPlace { kBefore, kAfter, kBoth };

// What one layer is made of.
struct BlockSpec {
  TokenMixerKind token_mixer = TokenMixerKind::kSoftmaxAttention;
  ChannelMixerKind channel_mixer = ChannelMixerKind::kMlp;
  int64_t window = 0;  // a token attends to itself and the window - 1 tokens before it; 0 = to all
  bool local_rope = false;  // RoPE by ModelConfig::local_rope_theta, without scaling
  bool no_rope = false;     // of softmax attention: positions do not count
  bool operator==(const BlockSpec&) const = default;
};

// Factors of Granite.
struct Multipliers {
  double embedding = 1.0;       // of embeddings
  double scores = 0.0;          // of attention scores, in place of query_scalar; 0 = none
  double residual = 1.0;        // of what a mixer adds to the residual stream
  double logits_divisor = 1.0;  // logits are divided by it
  bool operator==(const Multipliers&) const = default;
};

// A model's shape: sizes are numbers of elements, lengths numbers of tokens. Plain data; Decoder
// checks it.
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
  bool norms_plus_one = false;  // Gemma and Qwen3-Next: every RMSNorm multiplies by 1 + weight
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double local_rope_theta = 10000.0;  // Gemma 3: of blocks with local_rope
  bool tie_word_embeddings = false;
  bool mlp_bias = false;           // Llama with mlp_bias
  bool fused_projections = false;  // Phi-3: q, k and v are one tensor, and gate and up are one
  bool scaled_embedding = false;   // Gemma: embeddings times sqrt(hidden_size)
  Multipliers multipliers;
  NormPlace norm_place = NormPlace::kBefore;
  GateActivation activation = GateActivation::kSilu;  // of the MLP's gate
  SoftmaxAttentionConfig attention;
  LatentAttentionConfig latent;
  DeltaNetConfig delta_net;
  ExpertsConfig experts;
  // Of each layer. Empty: all layers are alike, with experts if there are any.
  std::vector<BlockSpec> blocks;
  std::optional<VisionConfig> vision;  // of a model that takes images
  OnDiskConfig on_disk;
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

  // What layer `layer` is made of. The functions of one layer below ask it. That of
  // further_layer() has attention to all tokens, and experts where the model has any.
  // Throws: std::out_of_range when blocks are given, but none for `layer`.
  BlockSpec block(int64_t layer) const;
  int64_t window(int64_t layer) const { return block(layer).window; }
  bool has_experts(int64_t layer) const {
    return block(layer).channel_mixer == ChannelMixerKind::kExperts;
  }

  bool has_latent_attention() const { return latent.kv_rank > 0; }

  NormOptions norm_options() const { return {rms_norm_eps, fp32_norms, norms_plus_one}; }

  // Factor on attention scores, without that of YaRN in latent attention.
  double softmax_scale() const;

  // What RoPE's frequencies follow from, of the components that it turns.
  RopeSettings rope() const {
    const int64_t turned = has_latent_attention()     ? latent.rope_dim
                           : attention.rotary_dim > 0 ? attention.rotary_dim
                                                      : head_dim;
    return {turned,
            rope_theta,
            rope_scaling,
            max_position_embeddings,
            max_document_tokens,
            has_latent_attention() ? turned : head_dim};
  }
};

// The index of the layer that predicts a further token.
inline int64_t further_layer(const ModelConfig& config) { return config.num_hidden_layers; }

// What RoPE's frequencies follow from in blocks with local_rope.
inline RopeSettings local_rope(const ModelConfig& config) {
  return {config.head_dim, config.local_rope_theta, {}};
}

// What the names of a model's tensors on disk begin with, but for the head's; of those of a layer.
std::string trunk_prefix(const ModelConfig& config);
std::string layer_prefix(const ModelConfig& config, int64_t layer);

// Names of what is around the layer that predicts a further token: the norms of the next token's
// embedding and of the hidden state, the matrix that reads both side by side, and the norm behind
// the layer.
struct FurtherNames {
  std::string embedding_norm, hidden_norm, projection, final_norm;
};
// The whole names, as the model's files have them.
FurtherNames further_names(const ModelConfig& config);

// Why the model's layers that predict further tokens cannot be trained; "" where they can.
std::string further_problem(const ModelConfig& config);

// Writes config.blocks out where the layers are all alike.
void list_blocks(ModelConfig& config);

// Windows of all layers, ascending, each once.
std::vector<int64_t> distinct_windows(const ModelConfig& config);

// The module in a layer that holds router and experts, as in the names of their tensors.
std::string experts_module(const ExpertsConfig& experts);

// The layers with experts, ascending.
std::vector<int64_t> expert_layers(const ModelConfig& config);

// Whether the layer's token mixer is a gated delta net.
// Throws: std::out_of_range as ModelConfig::block().
bool is_delta_net(const ModelConfig& config, int64_t layer);

// Positions that the model is meant for: max_position_embeddings, stretched by rope types whose
// config.json keeps the length before scaling there (linear; yarn: factor x original length), and
// at most max_document_tokens and attention.plain_tokens. vLLM derives the same but for the latter.
int64_t num_positions(const ModelConfig& config);

// Length above which a document's log-probs would be wrong, not just untrained; 0 = none. It is the
// least of max_document_tokens, attention.plain_tokens, and max_position_embeddings with rope_type
// dynamic.
int64_t longest_exact_document(const ModelConfig& config);

}  // namespace ringside::engine
