#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// Llama with another MLP.
ModelConfig read_arcee(const JsonObject& json) {
  ModelConfig config;
  config.rms_norm_eps = 1e-5;
  read_shared_fields(json, {.key_value_heads_required = false, .activation_value = "relu2"},
                     config);
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias").value_or(false);
  list_blocks(config);
  for (BlockSpec& block : config.blocks) {
    block.channel_mixer = ChannelMixerKind::kSquaredReluMlp;
  }
  return config;
}

void write_arcee(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["hidden_act"] = "relu2";
  json["attention_bias"] = config.attention.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
}

}  // namespace

extern const Architecture kArcee{"arcee", "ArceeForCausalLM", read_arcee, write_arcee};

}  // namespace ringside::engine
