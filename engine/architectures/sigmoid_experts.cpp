#include "engine/architectures/sigmoid_experts.h"

#include <algorithm>
#include <string>

#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

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

}  // namespace

void read_sigmoid_experts(const JsonObject& json, ModelConfig& config) {
  config.experts = read_experts(json);
  const int64_t dense = json.require_at_least(0, "first_k_dense_replace");
  list_blocks(config);
  for (int64_t layer = 0; layer < std::min(dense, config.num_hidden_layers); ++layer) {
    config.blocks[layer].channel_mixer = ChannelMixerKind::kMlp;
  }
  read_further_tokens(json, {"num_nextn_predict_layers"}, config);
  config.on_disk.further.layers = json.integer("num_nextn_predict_layers").value_or(0);
}

void write_sigmoid_experts(const ModelConfig& config, nlohmann::ordered_json& json) {
  const ExpertsConfig& experts = config.experts;
  json.update({{"n_routed_experts", experts.count},
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

}  // namespace ringside::engine
