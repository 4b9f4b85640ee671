// config.json of models as they are published: each is accepted with every field it has, and gives
// as many parameters as its model card says. Only what a file says of the layers is repeated here.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/model_config_json.h"
#include "engine/layers/decoder_layer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

struct Published {
  const char* model;  // on huggingface.co
  int64_t parameters;
  const char* config;
};

const std::vector<Published> kPublished{
    {"meta-llama/Llama-3.1-8B-Instruct", 8'030'261'248, R"({
       "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
       "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
       "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
       "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
       "pretraining_tp": 1, "rms_norm_eps": 1e-05,
       "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
       "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
       "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})"},
    {"Qwen/Qwen3-30B-A3B", 30'532'122'624, R"({
       "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
       "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
       "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
       "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
       "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
       "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
       "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
       "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
       "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
       "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"},
    {"ByteDance-Seed/Seed-OSS-36B-Instruct", 36'151'104'512, R"({
       "architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1,
       "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128,
       "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
       "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": false,
       "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
       "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
       "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0,
       "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.55.0",
       "use_cache": true, "vocab_size": 155136})"},
    {"HuggingFaceTB/SmolLM3-3B", 3'075'098'624, R"({
       "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
       "initializer_range": 0.02, "intermediate_size": 11008,
       "layer_types": ["full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention"],
       "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
       "model_type": "smollm3", "no_rope_layer_interval": 4,
       "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1,
          1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0],
       "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
       "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null,
       "rope_theta": 5000000.0, "sliding_window": null, "torch_dtype": "bfloat16",
       "transformers_version": "4.54.0.dev0", "use_cache": false, "use_sliding_window": false,
       "vocab_size": 128256})"},
    {"LGAI-EXAONE/EXAONE-4.0-32B", 32'003'216'384, R"({
       "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
       "eos_token_id": 361, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
       "initializer_range": 0.02, "intermediate_size": 27392,
       "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
          "full_attention"],
       "max_position_embeddings": 131072, "model_type": "exaone4", "num_attention_heads": 40,
       "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
       "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
       "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
       "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.54.0",
       "use_cache": true, "vocab_size": 102400})"},
    {"LGAI-EXAONE/EXAONE-4.0-1.2B", 1'279'391'488, R"({
       "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
       "eos_token_id": 361, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
       "initializer_range": 0.02, "intermediate_size": 4096,
       "layer_types": ["full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention", "full_attention",
          "full_attention", "full_attention", "full_attention"],
       "max_position_embeddings": 65536, "model_type": "exaone4", "num_attention_heads": 32,
       "num_hidden_layers": 30, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
       "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
       "rope_theta": 1000000, "sliding_window": null, "sliding_window_pattern": null,
       "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.54.0",
       "use_cache": true, "vocab_size": 102400})"},
    // 110,468,824,832 with the layer that predicts a further token, which is not loaded.
    {"zai-org/GLM-4.5-Air", 106'852'251'264, R"({
       "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
       "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128,
       "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
       "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
       "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
       "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8,
       "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
       "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
       "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
       "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
       "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false,
       "vocab_size": 151552})"},
    // The card says 4.5 billion; the number is that of the shapes below, counted by hand.
    {"arcee-ai/AFM-4.5B", 4'619'184'640, R"({
       "architectures": ["ArceeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "bos_token_id": 128000, "eos_token_id": [128001, 128003], "head_dim": 128,
       "hidden_act": "relu2", "hidden_size": 2560, "initializer_range": 0.02,
       "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": false,
       "model_type": "arcee", "num_attention_heads": 20, "num_hidden_layers": 36,
       "num_key_value_heads": 4, "rms_norm_eps": 1e-05,
       "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0,
                        "original_max_position_embeddings": 4096, "rope_type": "yarn",
                        "type": "yarn"},
       "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
       "transformers_version": "4.53.2", "use_cache": true, "vocab_size": 128004})"},
    {"microsoft/Phi-4-mini-instruct", 3'836'021'760, R"({
       "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1,
       "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
       "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
       "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
       "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
       "original_max_position_embeddings": 4096, "pad_token_id": 199999,
       "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
       "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
       "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
       "vocab_size": 200064})"},
    {"allenai/OLMo-2-1124-7B", 7'298'617'344, R"({
       "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096,
       "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
       "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
       "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
       "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
       "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": false,
       "vocab_size": 100352})"},
    {"ibm-granite/granite-3.3-8b-instruct", 8'170'864'640, R"({
       "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
       "attention_multiplier": 0.0078125, "bos_token_id": 0, "embedding_multiplier": 12.0,
       "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
       "intermediate_size": 12800, "logits_scaling": 16.0, "max_position_embeddings": 131072,
       "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
       "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
       "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
       "rope_theta": 10000000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
       "transformers_version": "4.49.0", "use_cache": true, "vocab_size": 49159})"},
    // The text part; the card counts the vision tower, too.
    {"google/gemma-3-4b-it", 3'880'263'168, R"({
       "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
       "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
       "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
       "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
          "model_type": "gemma3_text", "num_hidden_layers": 34,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
       "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
       "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
          "model_type": "siglip_vision_model", "num_attention_heads": 16,
          "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false}})"},
};

int64_t elements(const std::vector<ParamSpec>& specs) {
  int64_t sum = 0;
  for (const ParamSpec& spec : specs) {
    int64_t product = 1;
    for (const int64_t size : spec.shape) {
      product *= size;
    }
    sum += product;
  }
  return sum;
}

int64_t count_parameters(const ModelConfig& config) {
  const int64_t embedding = config.vocab_size * config.hidden_size;
  int64_t sum = embedding * (config.tie_word_embeddings ? 1 : 2) + config.hidden_size;
  for (const DecoderLayer& layer : make_layers(config)) {
    sum += elements(layer.specs());
    for (const std::vector<ParamSpec>& unit : layer.experts_specs()) {
      sum += elements(unit);
    }
    const bool corrected = bool(layer.channel_mixer().supports(Feature::kRouterCorrections));
    sum += corrected ? config.experts.count : 0;
  }
  return sum;
}

ModelConfig load_config(const std::string& config) {
  const test::TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", config);
  return load_model_config(dir.path());
}

TEST_CASE("published models: config.json is accepted and gives the card's number of parameters") {
  for (const Published& published : kPublished) {
    INFO(published.model);
    const ModelConfig config = load_config(published.config);
    CHECK(count_parameters(config) == published.parameters);
    const ModelConfig again = load_config(model_config_json(config, "bfloat16"));
    CHECK(count_parameters(again) == published.parameters);
    CHECK((again.blocks == config.blocks));
  }
}

}  // namespace
}  // namespace ringside::engine
