// Configurations of published families as config.json has them, small.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/model_config_json.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {

inline nlohmann::json base(const std::string& model_type) {
  const bool gemma = model_type == "gemma3_text";
  const std::string plain = model_type == "arcee" ? "relu2" : "silu";
  return {{"model_type", model_type},
          {"vocab_size", 97},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {gemma ? "hidden_activation" : "hidden_act", gemma ? "gelu_pytorch_tanh" : plain},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 4096}};
}

inline nlohmann::json gpt_oss_fields() {
  return {{"num_local_experts", 4},
          {"num_experts_per_tok", 2},
          {"rope_parameters",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"truncate", false},
            {"original_max_position_embeddings", 4096}}}};
}

inline nlohmann::json with(nlohmann::json config, const nlohmann::json& changes) {
  config.update(changes);
  return config;
}

inline ModelConfig load(const nlohmann::json& config, const nlohmann::json& generation = nullptr) {
  const test::TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", config.dump());
  if (!generation.is_null()) {
    test::write_file(dir.path() / "generation_config.json", generation.dump());
  }
  return load_model_config(dir.path());
}

inline nlohmann::json minimax_fields() {
  return {{"head_dim", 16},
          {"rotary_dim", 8},
          {"num_local_experts", 4},
          {"num_experts_per_tok", 2},
          {"scoring_func", "sigmoid"},
          {"use_routing_bias", true},
          {"use_qk_norm", true},
          {"qk_norm_type", "per_layer"}};
}

inline nlohmann::json glm4_moe_fields() {
  return {{"n_routed_experts", 6},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 16},
          {"n_group", 1},
          {"topk_group", 1},
          {"routed_scaling_factor", 1.5},
          {"first_k_dense_replace", 1}};
}

inline nlohmann::json deepseek() {
  return with(base("deepseek_v3"), {{"num_attention_heads", 4},
                                    {"num_key_value_heads", 4},
                                    {"head_dim", nullptr},
                                    {"q_lora_rank", 12},
                                    {"kv_lora_rank", 8},
                                    {"qk_nope_head_dim", 8},
                                    {"qk_rope_head_dim", 4},
                                    {"v_head_dim", 6},
                                    {"n_routed_experts", 6},
                                    {"n_shared_experts", 2},
                                    {"num_experts_per_tok", 3},
                                    {"moe_intermediate_size", 16},
                                    {"n_group", 3},
                                    {"topk_group", 2},
                                    {"norm_topk_prob", true},
                                    {"routed_scaling_factor", 2.5},
                                    {"first_k_dense_replace", 1},
                                    {"scoring_func", "sigmoid"},
                                    {"topk_method", "noaux_tc"},
                                    {"moe_layer_freq", 1},
                                    {"ep_size", 1},
                                    {"seq_aux", true},
                                    {"aux_loss_alpha", 0.001},
                                    {"num_nextn_predict_layers", 1}});
}

inline nlohmann::json hybrid(const std::string& model_type) {
  nlohmann::json fields = with(base(model_type), {{"linear_num_key_heads", 2},
                                                  {"linear_num_value_heads", 4},
                                                  {"linear_key_head_dim", 8},
                                                  {"linear_value_head_dim", 6},
                                                  {"linear_conv_kernel_dim", 4},
                                                  {"num_hidden_layers", 4},
                                                  {"head_dim", 16}});
  if (model_type == "qwen3_next" || model_type == "qwen3_5_moe_text") {
    fields.update({{"num_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 16},
                   {"shared_expert_intermediate_size", 12}});
  }
  return fields;
}

}  // namespace ringside::engine
