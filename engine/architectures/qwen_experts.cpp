#include "engine/architectures/qwen_experts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// The layers, some of which transformers builds with an MLP.
std::vector<BlockSpec> read_blocks(const JsonObject& json, int64_t layers) {
  const std::vector<int64_t> listed = json.integers("mlp_only_layers");
  const int64_t step =
      json.has("decoder_sparse_step") ? json.require_at_least(1, "decoder_sparse_step") : 1;
  std::vector<BlockSpec> blocks(layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool is_listed = std::find(listed.begin(), listed.end(), layer) != listed.end();
    blocks[layer].channel_mixer =
        is_listed || (layer + 1) % step != 0 ? ChannelMixerKind::kMlp : ChannelMixerKind::kExperts;
  }
  return blocks;
}

std::vector<int64_t> mlp_layers(const ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.has_experts(layer)) {
      layers.push_back(layer);
    }
  }
  return layers;
}

}  // namespace

void read_qwen_experts(const JsonObject& json, bool normalised, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.count = read_expert_count(json);
  experts.per_token = json.require_at_least(1, "num_experts_per_tok");
  if (experts.per_token > experts.count) {
    json.fail("num_experts_per_tok", "is " + std::to_string(experts.per_token) +
                                         ", expected at most " + std::to_string(experts.count) +
                                         ", the number of experts");
  }
  experts.intermediate_size = json.require_at_least(1, "moe_intermediate_size");
  experts.normalise_weights = json.boolean("norm_topk_prob").value_or(normalised);
  config.blocks = read_blocks(json, config.num_hidden_layers);
  // Of a loss that pre-training adds.
  json.has("router_aux_loss_coef");
  json.has("output_router_logits");
}

void read_gated_shared_experts(const JsonObject& json, ModelConfig& config) {
  read_qwen_experts(json, /*normalised=*/true, config);
  config.experts.shared_intermediate_size =
      json.require_at_least(1, "shared_expert_intermediate_size");
  config.experts.gated_shared = true;
}

void write_gated_shared_experts(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_qwen_experts(config, json);
  json["shared_expert_intermediate_size"] = config.experts.shared_intermediate_size;
}

void write_qwen_experts(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["num_experts"] = config.experts.count;
  json["num_local_experts"] = config.experts.count;
  json["num_experts_per_tok"] = config.experts.per_token;
  json["moe_intermediate_size"] = config.experts.intermediate_size;
  json["norm_topk_prob"] = config.experts.normalise_weights;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = mlp_layers(config);
  json["output_router_logits"] = false;
}

}  // namespace ringside::engine
