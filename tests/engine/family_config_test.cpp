// A field of one family that is overlooked trains another model without an error: what Gemma 3,
// GPT-OSS, DeepSeek-V3, GLM-4.5, multimodal models and hybrids say must be read or refused by name.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/architectures/architecture.h"
#include "engine/io/model_config_json.h"
#include "tests/engine/model_config_cases.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;

TEST_CASE("config: Gemma 3's RoPE is read in both forms, its soft caps are refused") {
  const json linear{{"rope_type", "linear"}, {"factor", 8.0}};
  const json old{{"rope_theta", 5e5}, {"rope_local_base_freq", 2e4}, {"rope_scaling", linear}};
  const json full = with(linear, {{"rope_theta", 5e5}});
  const json local{{"rope_type", "default"}, {"rope_theta", 2e4}};
  const json both{{"full_attention", full}, {"sliding_attention", local}};
  for (const json& fields : {old, json{{"rope_parameters", both}}}) {
    const ModelConfig config = load(with(base("gemma3_text"), fields));
    CHECK(config.rope_theta == 5e5);
    CHECK(config.local_rope_theta == 2e4);
    CHECK(config.rope_scaling == RopeScaling(LinearRope{8.0}));
  }
  const ModelConfig plain = load(base("gemma3_text"));
  CHECK((plain.rope_theta == 1e6 && plain.local_rope_theta == 1e4));
  CHECK((plain.tie_word_embeddings && plain.norms_plus_one));
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    CHECK_NOTHROW(load(with(base("gemma3_text"), {{key, nullptr}})));
    CHECK_THROWS_WITH(load(with(base("gemma3_text"), {{key, 30.0}})),
                      Contains(std::string("'") + key + "' is set"));
  }
  const json scaled_local{{"full_attention", full}, {"sliding_attention", full}};
  CHECK_THROWS_WITH(load(with(base("gemma3_text"), {{"rope_parameters", scaled_local}})),
                    Contains("windowed layers is not scaled"));
}

TEST_CASE("config: layer_types of a class that has none may say what its windows are") {
  const json fields = with(base("qwen3_moe"), {{"num_experts", 4},
                                               {"num_experts_per_tok", 2},
                                               {"moe_intermediate_size", 16},
                                               {"sliding_window", 5}});
  const json full{{"layer_types", {"full_attention", "full_attention"}}};
  const json sliding{{"layer_types", {"sliding_attention", "sliding_attention"}}};
  const json used = with(fields, {{"use_sliding_window", true}});
  CHECK(load(with(fields, full)).window(1) == 0);
  CHECK(load(with(used, sliding)).window(1) == 5);
  CHECK_THROWS_WITH(load(with(fields, sliding)),
                    Contains("'layer_types' holds 'sliding_attention' for layer 0"));
  CHECK_THROWS_WITH(load(with(used, full)), Contains("'layer_types' holds 'full_attention'"));
  for (const std::size_t layers : {1, 3}) {
    const json wrong{{"layer_types", std::vector<std::string>(layers, "full_attention")}};
    CHECK_THROWS_WITH(load(with(fields, wrong)),
                      Contains("'layer_types' has") && Contains("expected num_hidden_layers = 2"));
  }
}

TEST_CASE("config: GPT-OSS is read with its own defaults; what its experts cannot be is refused") {
  const json fields = with(base("gpt_oss"), gpt_oss_fields());
  const ModelConfig config = load(fields);
  CHECK((config.attention.sinks && config.attention.qkv_bias && config.attention.o_bias &&
         config.rope_theta == 150000.0));
  CHECK((config.window(0) == 128 && config.window(1) == 0));
  CHECK(config.experts.count == 4);
  CHECK_FALSE(*std::get<YarnRope>(config.rope_scaling).truncate);
  CHECK_NOTHROW(load(with(fields, {{"swiglu_limit", 7.0}, {"experts_per_token", 2}})));
  const auto refused = [&](const json& changes, const std::string& key) {
    CHECK_THROWS_WITH(load(with(fields, changes)), Contains("'" + key + "'"));
  };
  refused({{"swiglu_limit", 5.0}}, "swiglu_limit");
  refused({{"experts_per_token", 3}}, "experts_per_token");
  refused({{"num_experts_per_tok", 5}}, "num_experts_per_tok");
  refused({{"rope_parameters", nullptr}}, "rope_parameters");
  CHECK_NOTHROW(load(with(fields, {{"quantization_config",
                                    {{"quant_method", "mxfp4"},
                                     {"modules_to_not_convert", {"model.layers.*.self_attn"}}}}})));
  refused({{"quantization_config", {{"quant_method", "gptq"}}}}, "quantization_config");
  CHECK_THROWS_WITH(
      load(with(base("qwen2"), {{"quantization_config", {{"quant_method", "mxfp4"}}}})),
      Contains("'quantization_config' is"));
}

// With the fields that DeepSeek's own files have beyond transformers'.
// The text part of a multimodal model, as on the hub.
json multimodal() {
  json text = with(base("qwen3_5_text"), {{"num_hidden_layers", 4},
                                          {"head_dim", 16},
                                          {"attn_output_gate", true},
                                          {"full_attention_interval", 4},
                                          {"linear_num_key_heads", 2},
                                          {"linear_num_value_heads", 4},
                                          {"linear_key_head_dim", 8},
                                          {"linear_value_head_dim", 8},
                                          {"linear_conv_kernel_dim", 4},
                                          {"mamba_ssm_dtype", "float32"},
                                          {"mlp_only_layers", json::array()},
                                          {"mtp_num_hidden_layers", 1},
                                          {"mtp_use_dedicated_embeddings", false},
                                          {"eos_token_id", 7},
                                          {"rope_parameters",
                                           {{"rope_type", "default"},
                                            {"rope_theta", 1e7},
                                            {"partial_rotary_factor", 0.25},
                                            {"mrope_interleaved", true},
                                            {"mrope_section", {1, 1, 0}}}}});
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"text_config", text},
          {"vision_config", {{"depth", 2}, {"model_type", "qwen3_5"}}},
          {"image_token_id", 90},
          {"video_token_id", 91},
          {"vision_start_token_id", 92},
          {"vision_end_token_id", 93},
          {"tie_word_embeddings", true},
          {"transformers_version", "5.2.0"}};
}

TEST_CASE("config: the text part of a multimodal model is read and written in its place") {
  const ModelConfig config = load(multimodal());
  CHECK(config.model_type == "qwen3_5_text");
  CHECK(config.delta_net.shape == sp::StateShape{2, 4, 8, 8, 4});
  CHECK(config.attention.rotary_dim == 4);
  CHECK(config.tie_word_embeddings);  // said outside alone
  CHECK(config.eos_token_ids == std::vector<int64_t>{7});
  CHECK(layer_prefix(config, 3) == "model.language_model.layers.3.");
  const json written = json::parse(model_config_json(config, "bfloat16"));
  CHECK(json::parse(model_config_json(load(written), "bfloat16")) == written);
  CHECK(written["model_type"] == "qwen3_5");
  CHECK(written["architectures"] == multimodal()["architectures"]);
  CHECK(written["vision_config"] == multimodal()["vision_config"]);
  CHECK(written["dtype"] == "bfloat16");
  CHECK(written["text_config"]["dtype"] == "bfloat16");
  CHECK(written["text_config"]["rope_parameters"]["mrope_section"] == json({1, 1, 0}));
  const auto refuses = [](const json& change, const char* error) {
    CHECK_THROWS_WITH(load(with(multimodal(), change)), Contains(error));
  };
  refuses({{"text_config", nullptr}}, "'text_config' is missing");
  refuses({{"text_config", base("qwen3")}}, "'model_type' is 'qwen3', expected qwen3_5_text");
  refuses({{"quantization_config", {{"quant_method", "awq"}}}}, "'quantization_config' is");
  const ModelConfig in_fp8 =
      load(with(multimodal(), {{"quantization_config", {{"quant_method", "fp8"}}}}));
  CHECK_FALSE(json::parse(model_config_json(in_fp8, "bfloat16")).contains("quantization_config"));
  refuses({{"mixer", "other"}}, "'mixer' is a field");
  CHECK_NOTHROW(load(with(multimodal(), {{"language_model_only", false}})));
  for (const char* gate : {"swish", "silu"}) {
    CHECK_NOTHROW(load(with(multimodal(), {{"text_config", with(multimodal()["text_config"],
                                                                {{"output_gate_type", gate}})}})));
  }
  refuses({{"text_config", with(multimodal()["text_config"], {{"output_gate_type", "sigmoid"}})}},
          "'output_gate_type' is 'sigmoid', expected silu or swish");
  refuses({{"text_config", with(multimodal()["text_config"], {{"tie_word_embeddings", false}})}},
          "'tie_word_embeddings' differs from that of text_config");
  refuses({{"text_config", with(multimodal()["text_config"], {{"attn_output_gate", false}})}},
          "'attn_output_gate' is false, expected true");
  refuses({{"text_config", with(multimodal()["text_config"], {{"mlp_only_layers", {1}}})}},
          "'mlp_only_layers' lists layers");
}

TEST_CASE("config: DeepSeek-V3's fields") {
  const ModelConfig config = load(deepseek());
  CHECK(config.head_dim == 12);
  CHECK(config.rope().head_dim == 4);
  CHECK(config.latent == LatentAttentionConfig{12, 8, 8, 4, 6, true, false});
  CHECK(config.experts.shared_intermediate_size == 32);
  CHECK((config.experts.groups == 3 && config.experts.kept_groups == 2));
  CHECK(config.on_disk.further.layers == 1);
  CHECK_FALSE(config.has_experts(0));
  CHECK(config.has_experts(1));
  const auto refuses = [](const json& change, const char* error) {
    CHECK_THROWS_WITH(load(with(deepseek(), change)), Contains(error));
  };
  refuses({{"scoring_func", "softmax"}}, "'scoring_func' is 'softmax', expected sigmoid");
  refuses({{"topk_method", "greedy"}}, "'topk_method' is 'greedy', expected noaux_tc");
  refuses({{"moe_layer_freq", 2}}, "'moe_layer_freq' is 2, expected 1");
  refuses({{"head_dim", 12}}, "'head_dim' is 12, expected 4, as qk_rope_head_dim");
  refuses({{"v_head_dim", 13}}, "'v_head_dim' is 13, expected at most");
  refuses({{"num_key_value_heads", 2}}, "'num_key_value_heads' is 2, expected");
  refuses({{"n_group", 4}}, "'n_group' is 4, expected groups of equal size");
  refuses({{"n_group", 6}}, "'n_group' is 6, expected groups of equal size, of two experts");
  refuses({{"topk_group", 4}}, "'topk_group' is 4, expected at most n_group = 3");
  refuses({{"num_experts_per_tok", 5}}, "'num_experts_per_tok' is 5, expected at most 4");
  refuses({{"num_local_experts", 8}}, "'num_local_experts' is 8, expected 6");
  refuses({{"rotary_dim", 4}}, "'rotary_dim'");
}

TEST_CASE("config: GLM-4.5's RoPE turns half of each head, and its output has no bias") {
  const json fields = with(base("glm4_moe"), glm4_moe_fields());
  const ModelConfig plain = load(fields);
  CHECK(plain.attention.rotary_dim == 8);
  CHECK(plain.rms_norm_eps == 1e-5);
  CHECK_FALSE((plain.attention.qk_norm || plain.attention.qkv_bias));
  CHECK((plain.experts.router == RouterKind::kSigmoid && plain.experts.normalise_weights));
  CHECK((!plain.has_experts(0) && plain.has_experts(1)));
  const ModelConfig other = load(with(fields, {{"attention_bias", true},
                                               {"use_qk_norm", true},
                                               {"partial_rotary_factor", 1.0},
                                               {"num_nextn_predict_layers", 1}}));
  CHECK(other.attention.rotary_dim == 16);
  CHECK((other.attention.qk_norm && other.attention.qkv_bias && !other.attention.o_bias));
  CHECK(other.on_disk.further.layers == 1);
  CHECK_THROWS_WITH(load(with(fields, {{"topk_method", "greedy"}})),
                    Contains("'topk_method' is 'greedy', expected noaux_tc"));
}

TEST_CASE("config: gated delta nets, and attention in every fourth layer") {
  const ModelConfig config = load(hybrid("qwen3_next"));
  CHECK((config.delta_net.shape == sp::StateShape{2, 4, 8, 6, 4}));
  CHECK((config.norms_plus_one && config.attention.gated && config.experts.gated_shared));
  CHECK(config.attention.rotary_dim == 4);
  CHECK((is_delta_net(config, 0) && is_delta_net(config, 2) && !is_delta_net(config, 3)));
  const auto refuses = [](const json& fields, const char* message) {
    CHECK_THROWS_WITH(load(with(hybrid("qwen3_5_text"), fields)), Catch::Contains(message));
  };
  refuses({{"linear_num_value_heads", 3}}, "'linear_num_value_heads' is 3, expected a multiple");
  refuses({{"layer_types", {"linear_attention"}}}, "'layer_types' has 1 layers");
  refuses({{"partial_rotary_factor", 0.2}}, "'partial_rotary_factor' is 0.2, which turns 3 of 16");
  refuses({{"full_attention_interval", 0}}, "'full_attention_interval'");
  CHECK_NOTHROW(load(with(hybrid("qwen3_next"), {{"use_sliding_window", false}})));
  CHECK_THROWS_WITH(load(with(hybrid("qwen3_next"), {{"use_sliding_window", true}})),
                    Contains("'use_sliding_window' is a field"));
  const ModelConfig moe = load(hybrid("qwen3_5_moe_text"));
  CHECK((moe.experts.gated_shared && moe.experts.normalise_weights &&
         !moe.delta_net.grouped_projections && is_delta_net(moe, 0) && moe.has_experts(3)));
  CHECK_THROWS_WITH(load(with(hybrid("qwen3_5_moe_text"), {{"mlp_only_layers", {1}}})),
                    Contains("'mlp_only_layers' lists layers"));
}

}  // namespace
}  // namespace ringside::engine
