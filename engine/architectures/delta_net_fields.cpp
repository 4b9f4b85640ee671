#include "engine/architectures/delta_net_fields.h"

#include <string>
#include <vector>

#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

constexpr const char* kLinear = "linear_attention";
constexpr const char* kSoftmax = "full_attention";

sp::StateShape read_heads_of_delta_net(const JsonObject& json) {
  sp::StateShape shape;
  shape.key_heads = json.require_at_least(1, "linear_num_key_heads");
  shape.value_heads = json.require_at_least(1, "linear_num_value_heads");
  shape.key_dim = json.require_at_least(1, "linear_key_head_dim");
  shape.value_dim = json.require_at_least(1, "linear_value_head_dim");
  shape.conv_taps = json.require_at_least(1, "linear_conv_kernel_dim");
  if (shape.value_heads % shape.key_heads != 0) {
    json.fail("linear_num_value_heads", "is " + std::to_string(shape.value_heads) +
                                            ", expected a multiple of linear_num_key_heads = " +
                                            std::to_string(shape.key_heads));
  }
  return shape;
}

}  // namespace

void read_delta_net_fields(const JsonObject& json, ModelConfig& config, bool intermediate_size) {
  FieldDefaults defaults;
  defaults.intermediate_size = intermediate_size;
  defaults.head_dim = 256;
  defaults.read_rope = [](const JsonObject& fields, ModelConfig& read) {
    read_partial_rope(fields, 0.25, read);
  };
  read_shared_fields(json, defaults, config);
  read_attention_bias(json, config);
  config.attention.qk_norm = config.norms_plus_one = config.attention.gated = true;
  config.delta_net.shape = read_heads_of_delta_net(json);
  if (!json.boolean("attn_output_gate").value_or(true)) {
    json.refuse("attn_output_gate", "is false, expected true: attention has a gate here");
  }
  // Of the delta net's gate; silu and swish are the same.
  if (const std::string gate = json.text("output_gate_type").value_or("silu");
      gate != "silu" && gate != "swish") {
    json.refuse("output_gate_type", "is '" + gate + "', expected silu or swish");
  }
  json.has("mamba_ssm_dtype");  // of a state, in servers
}

void read_delta_net_layers(const JsonObject& json, ModelConfig& config) {
  const std::vector<std::string> types = json.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.num_hidden_layers) {
    json.fail("layer_types", "has " + std::to_string(types.size()) +
                                 " layers, expected num_hidden_layers = " +
                                 std::to_string(config.num_hidden_layers));
  }
  const int64_t interval =
      json.has("full_attention_interval") ? json.require_at_least(1, "full_attention_interval") : 4;
  list_blocks(config);
  read_further_tokens(
      json, {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "num_nextn_predict_layers"},
      config);
  // Published files of Qwen3-Next have one and do not say so.
  const auto further = json.integer("mtp_num_hidden_layers");
  config.on_disk.further.layers =
      further ? *further : json.integer("num_nextn_predict_layers").value_or(1);
  config.on_disk.further.part = "mtp.";
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string type = !types.empty()                ? types[layer]
                             : (layer + 1) % interval != 0 ? kLinear
                                                           : kSoftmax;
    if (type != kLinear && type != kSoftmax) {
      json.fail("layer_types", "holds '" + type + "', expected linear_attention or full_attention");
    }
    if (type == kLinear) {
      config.blocks[layer].token_mixer = TokenMixerKind::kGatedDelta;
    }
  }
}

void write_delta_net_fields(const ModelConfig& config, nlohmann::ordered_json& json) {
  const sp::StateShape& shape = config.delta_net.shape;
  add_partial_rope(config, json);
  json.update({{"attention_bias", config.attention.qkv_bias},
               {"linear_num_key_heads", shape.key_heads},
               {"linear_num_value_heads", shape.value_heads},
               {"linear_key_head_dim", shape.key_dim},
               {"linear_value_head_dim", shape.value_dim},
               {"linear_conv_kernel_dim", shape.conv_taps}});
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    types.push_back(is_delta_net(config, layer) ? kLinear : kSoftmax);
  }
  json["layer_types"] = types;
}

}  // namespace ringside::engine
