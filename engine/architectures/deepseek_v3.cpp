#include <string>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

void expect_text(const JsonObject& json, const char* key, const std::string& expected) {
  if (const std::string value = json.text(key).value_or(expected); value != expected) {
    json.fail(key, "is '" + value + "', expected " + expected);
  }
}

void expect_integer(const JsonObject& json, const char* key, int64_t expected,
                    const std::string& why) {
  if (const int64_t value = json.integer(key).value_or(expected); value != expected) {
    json.fail(key, "is " + std::to_string(value) + ", expected " + std::to_string(expected) + why);
  }
}

LatentAttentionConfig read_latent_attention(const JsonObject& json) {
  LatentAttentionConfig latent;
  latent.q_rank = json.has("q_lora_rank") ? json.require_at_least(1, "q_lora_rank") : 0;
  latent.kv_rank = json.require_at_least(1, "kv_lora_rank");
  latent.nope_dim = json.require_at_least(1, "qk_nope_head_dim");
  latent.rope_dim = json.require_at_least(1, "qk_rope_head_dim");
  latent.value_dim = json.require_at_least(1, "v_head_dim");
  latent.rope_interleaved = json.boolean("rope_interleave").value_or(true);
  latent.bias = json.boolean("attention_bias").value_or(false);
  if (latent.value_dim > latent.nope_dim + latent.rope_dim) {
    json.fail("v_head_dim", "is " + std::to_string(latent.value_dim) +
                                ", expected at most qk_nope_head_dim + qk_rope_head_dim = " +
                                std::to_string(latent.nope_dim + latent.rope_dim));
  }
  return latent;
}

void check_choice(const JsonObject& json, const ExpertsConfig& experts) {
  if (experts.count % experts.groups != 0 ||
      (experts.groups > 1 && experts.count / experts.groups < 2)) {
    json.fail("n_group", "is " + std::to_string(experts.groups) +
                             ", expected groups of equal size, of two experts at least, out of " +
                             std::to_string(experts.count));
  }
  if (experts.kept_groups > experts.groups) {
    json.fail("topk_group", "is " + std::to_string(experts.kept_groups) +
                                ", expected at most n_group = " + std::to_string(experts.groups));
  }
  if (const int64_t kept = experts.count / experts.groups * experts.kept_groups;
      experts.per_token > kept) {
    json.fail("num_experts_per_tok", "is " + std::to_string(experts.per_token) +
                                         ", expected at most " + std::to_string(kept) +
                                         ", the experts of topk_group groups");
  }
}

ExpertsConfig read_experts(const JsonObject& json) {
  expect_text(json, "scoring_func", "sigmoid");
  expect_text(json, "topk_method", "noaux_tc");
  expect_integer(json, "moe_layer_freq", 1, ": every layer behind the dense ones has experts");
  ExpertsConfig experts;
  experts.router = RouterKind::kSigmoid;
  experts.count = json.require_at_least(1, "n_routed_experts");
  expect_integer(json, "num_local_experts", experts.count, ", as n_routed_experts");
  experts.per_token = json.require_at_least(1, "num_experts_per_tok");
  experts.intermediate_size = json.require_at_least(1, "moe_intermediate_size");
  // The shared experts are one MLP.
  experts.shared_intermediate_size =
      json.require_at_least(1, "n_shared_experts") * experts.intermediate_size;
  experts.groups = json.require_at_least(1, "n_group");
  experts.kept_groups = json.require_at_least(1, "topk_group");
  experts.normalise_weights = json.boolean("norm_topk_prob").value_or(true);
  experts.weight_factor =
      json.require(json.number("routed_scaling_factor"), "routed_scaling_factor");
  check_choice(json, experts);
  // Of losses that pre-training adds, and of the ranks it ran on.
  for (const char* key : {"aux_loss_alpha", "seq_aux", "ep_size", "router_aux_loss_coef"}) {
    json.has(key);
  }
  return experts;
}

std::vector<BlockSpec> read_blocks(const JsonObject& json, int64_t layers) {
  const int64_t dense = json.require_at_least(0, "first_k_dense_replace");
  std::vector<BlockSpec> blocks(layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    blocks[layer].token_mixer = TokenMixerKind::kLatentAttention;
    blocks[layer].channel_mixer =
        layer < dense ? ChannelMixerKind::kMlp : ChannelMixerKind::kExperts;
  }
  return blocks;
}

ModelConfig read_deepseek_v3(const JsonObject& json) {
  ModelConfig config;
  config.latent = read_latent_attention(json);
  const int64_t head_dim = config.latent.nope_dim + config.latent.rope_dim;
  // transformers calls the components with RoPE head_dim.
  expect_integer(json, "head_dim", config.latent.rope_dim, ", as qk_rope_head_dim");
  expect_integer(json, "qk_head_dim", head_dim, ", qk_nope_head_dim + qk_rope_head_dim");
  FieldDefaults defaults;
  defaults.head_dim = config.latent.rope_dim;
  defaults.key_value_heads_required = false;
  read_shared_fields(json, defaults, config);
  config.head_dim = head_dim;
  if (config.num_key_value_heads != config.num_attention_heads) {
    json.fail("num_key_value_heads",
              "is " + std::to_string(config.num_key_value_heads) +
                  ", expected num_attention_heads = " + std::to_string(config.num_attention_heads) +
                  ": each head has keys of its own");
  }
  config.experts = read_experts(json);
  config.blocks = read_blocks(json, config.num_hidden_layers);
  config.on_disk.layers_left_out = json.integer("num_nextn_predict_layers").value_or(0);
  return config;
}

void write_deepseek_v3(const ModelConfig& config, nlohmann::ordered_json& json) {
  const LatentAttentionConfig& latent = config.latent;
  const ExpertsConfig& experts = config.experts;
  json["head_dim"] = latent.rope_dim;
  json["q_lora_rank"] =
      latent.q_rank > 0 ? nlohmann::ordered_json(latent.q_rank) : nlohmann::ordered_json(nullptr);
  json.update({{"kv_lora_rank", latent.kv_rank},
               {"qk_nope_head_dim", latent.nope_dim},
               {"qk_rope_head_dim", latent.rope_dim},
               {"v_head_dim", latent.value_dim},
               {"rope_interleave", latent.rope_interleaved},
               {"attention_bias", latent.bias},
               {"n_routed_experts", experts.count},
               {"n_shared_experts", experts.shared_intermediate_size / experts.intermediate_size},
               {"num_experts_per_tok", experts.per_token},
               {"moe_intermediate_size", experts.intermediate_size},
               {"n_group", experts.groups},
               {"topk_group", experts.kept_groups},
               {"norm_topk_prob", experts.normalise_weights},
               {"routed_scaling_factor", experts.weight_factor},
               {"scoring_func", "sigmoid"},
               {"topk_method", "noaux_tc"}});
  int64_t dense = 0;
  while (dense < config.num_hidden_layers && !config.has_experts(dense)) {
    ++dense;
  }
  json["first_k_dense_replace"] = dense;
}

}  // namespace

extern const Architecture kDeepseekV3{"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3,
                                      write_deepseek_v3};

}  // namespace ringside::engine
