#include <string>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"
#include "engine/architectures/sigmoid_experts.h"

namespace ringside::engine {
namespace {

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
  read_sigmoid_experts(json, config);
  for (BlockSpec& block : config.blocks) {
    block.token_mixer = TokenMixerKind::kLatentAttention;
  }
  return config;
}

void write_deepseek_v3(const ModelConfig& config, nlohmann::ordered_json& json) {
  const LatentAttentionConfig& latent = config.latent;
  json["head_dim"] = latent.rope_dim;
  json["q_lora_rank"] =
      latent.q_rank > 0 ? nlohmann::ordered_json(latent.q_rank) : nlohmann::ordered_json(nullptr);
  json.update({{"kv_lora_rank", latent.kv_rank},
               {"qk_nope_head_dim", latent.nope_dim},
               {"qk_rope_head_dim", latent.rope_dim},
               {"v_head_dim", latent.value_dim},
               {"rope_interleave", latent.rope_interleaved},
               {"attention_bias", latent.bias}});
  write_sigmoid_experts(config, json);
}

}  // namespace

extern const Architecture kDeepseekV3{"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3,
                                      write_deepseek_v3};
extern const Architecture kKimiK2{"kimi_k2", "DeepseekV3ForCausalLM", read_deepseek_v3,
                                  write_deepseek_v3};

}  // namespace ringside::engine
