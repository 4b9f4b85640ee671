// Fields of config.json that no architecture reads: what changes nothing is passed over and named,
// what changes the computation is refused, all of a file at once. And families and multimodal types
// whose files leave out much or say it elsewhere.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/architectures/architecture.h"
#include "engine/io/model_config_json.h"
#include "tests/engine/model_config_cases.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;
using test::TemporaryDirectory;

// Fields that the classes of Llama and Qwen3 do not have, with values that change nothing.
json harmless_fields() {
  return {{"unk_token_id", 0},
          {"_model_name_or_path", "a/b"},
          {"internal_version", "v1"},
          {"is_llama_config", true},
          {"rope_interleaved", false},
          {"transformers.js_config", {{"dtype", "q4"}}},
          {"max_sequence_length", 2048},
          {"use_sliding_window", false},
          {"max_window_layers", 28},
          {"use_mrope", false},
          {"qkv_bias", false},
          {"use_qk_norm", false},
          {"shared_expert_intermediate_size", 0},
          {"model_max_length", 4096},
          {"tokenizer_model_max_length", 4096},
          {"tokenizer_padding_side", "right"},
          {"_flash_attn_2_enabled", true},
          {"use_flash_attn", true},
          {"gradient_checkpointing", true},
          {"attn_implementation", "sdpa"},
          {"_attn_implementation_internal", "sdpa"},
          {"_experts_implementation", "eager"},
          {"summary_type", "cls_index"},
          {"bias", false},
          {"initializer_factor", 1.0},
          {"use_parallel_residual", false},
          {"output_router_logits", false},
          {"router_jitter_noise", 0.0},
          {"num_nextn_predict_layers", 0},
          {"is_causal", true},
          {"attention_multiplier", 1.0},
          {"logits_scaling", 1},
          {"use_bias", false},
          {"qk_layernorm", false},
          {"no_rope_layers", json::array()},
          {"model_name", "a"},
          {"license", "apache-2.0"},
          {"trl_version", "0.25.0"},
          {"axolotl_config", {{"a", 1}}},
          {"finetuned_from", "a/b"},
          {"hidden_size_per_layer_input", 0},
          {"num_key_value_groups", 2},
          {"mlp_bias", false},
          {"text_of_nothing", ""},
          {"object_of_nothing", json::object()}};
}

TEST_CASE("config: a field that changes nothing is passed over and named") {
  const json harmless = harmless_fields();
  for (const char* type : {"llama", "qwen3"}) {
    for (const auto& [key, value] : harmless.items()) {
      CAPTURE(type, key);
      const ModelConfig config = load(with(base(type), {{key, value}}));
      const bool is_known = (type == std::string("llama") && key == "mlp_bias") ||
                            (type == std::string("qwen3") &&
                             (key == "use_sliding_window" || key == "max_window_layers"));
      CHECK(config.on_disk.fields_passed_over ==
            (is_known ? std::vector<std::string>{} : std::vector<std::string>{key}));
    }
    CHECK(load(with(base(type), harmless)).on_disk.fields_passed_over.size() >= 43);
  }
  CHECK(load(with(base("qwen3"), {{"use_qk_norm", true}})).attention.qk_norm);
  // Nearly every file has these; they are not worth a word.
  CHECK(load(with(base("llama"), {{"torch_dtype", "bfloat16"}, {"unknown", nullptr}}))
            .on_disk.fields_passed_over.empty());
}

TEST_CASE("config: a field that changes the computation is refused by name") {
  const json of_llama{{"rope_interleaved", true},
                      {"use_sliding_window", true},
                      {"use_mrope", true},
                      {"qkv_bias", true},
                      {"use_qk_norm", true},
                      {"shared_expert_intermediate_size", 64},
                      {"sliding_window", 4096},
                      {"bias", true},
                      {"use_bias", true},
                      {"use_parallel_residual", true},
                      {"router_jitter_noise", 0.1},
                      {"num_nextn_predict_layers", 1},
                      {"is_causal", false},
                      {"use_rope", false},
                      {"attention_multiplier", 0.0078125},
                      {"embedding_multiplier", 12},
                      {"residual_multiplier", 0.22},
                      {"logits_scaling", 8},
                      {"logit_scale", 0.5},
                      {"qk_layernorm", true},
                      {"no_rope_layers", {1, 1, 1, 0}},
                      {"no_rope_layer_interval", 4},
                      {"hidden_size_per_layer_input", 256},
                      {"num_key_value_groups", 3},
                      {"attention_chunk_size", 8192},
                      {"final_logit_softcapping", 30.0},
                      {"attn_logit_softcapping", 50.0},
                      {"query_pre_attn_scalar", 256},
                      {"layer_types", {"full_attention", "linear_attention"}},
                      {"num_experts", 8},
                      {"clip_qkv", 8.0},
                      {"alibi", true},
                      {"llama_4_scaling", {{"beta", 0.1}}},
                      {"use_gated_attention", true}};
  for (const auto& [key, value] : of_llama.items()) {
    CAPTURE(key);
    CHECK_THROWS_WITH(load(with(base("llama"), {{key, value}})),
                      Contains("'" + key + "' is a field that"));
  }
  CHECK_THROWS_WITH(load(with(base("llama"), {{"logits_scaling", 0}})),
                    Contains("'logits_scaling' is a field that"));
  CHECK_THROWS_WITH(load(with(base("qwen3"), {{"mlp_bias", true}})), Contains("'mlp_bias'"));
  CHECK_THROWS_WITH(load(with(base("qwen2"), {{"use_mrope", true}})), Contains("'use_mrope' is"));
  CHECK_THROWS_WITH(load(with(base("qwen2"), {{"attention_bias", true}})),
                    Contains("'attention_bias' is a field that"));
}

TEST_CASE("config: all that is refused in a file is told in one message") {
  CHECK_THROWS_WITH(
      load(with(base("llama"), {{"quantization_config", {{"quant_method", "awq"}}},
                                {"hidden_act", "gelu"},
                                {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"a", 1}}},
                                {"clip_qkv", 8.0},
                                {"partial_rotary_factor", 0.5},
                                {"eos_token_id", 97}})),
      Contains("config.json: 'hidden_act' is") && Contains("; 'quantization_config' is") &&
          Contains("; 'partial_rotary_factor' is") &&
          Contains("; 'rope_scaling': 'a' is no field of rope_type yarn") &&
          Contains("; 'clip_qkv' is a field") && Contains("; 'eos_token_id' is 97"));
  // What leaves nothing to go on with still comes with what was refused before.
  CHECK_THROWS_WITH(load(with(base("llama"), {{"hidden_act", "gelu"}, {"vocab_size", "many"}})),
                    Contains("'hidden_act' is 'gelu'") && Contains("; 'vocab_size' is \"many\""));
}

TEST_CASE("config: numbers that Python writes and JSON does not have are told by their place") {
  const auto load_text = [](const std::string& more) {
    const TemporaryDirectory dir;
    std::string text = base("llama").dump();
    text.pop_back();
    test::write_file(dir.path() / "config.json", text + more + "}");
    return load_model_config(dir.path());
  };
  // In a field that is passed over they are no matter.
  CHECK(load_text(R"(, "internal_version": NaN, "_a": [-Infinity, "a \" NaN"])")
            .on_disk.fields_passed_over == std::vector<std::string>{"_a", "internal_version"});
  CHECK_THROWS_WITH(load_text(R"(, "rope_theta": Infinity)"),
                    Contains("'rope_theta' is \"Infinity\", expected a number"));
  CHECK_THROWS_WITH(load_text(R"(, "time_step_limit": [0.0, Infinity])"),
                    Contains("'time_step_limit' is a field that"));
  CHECK_THROWS_WITH(load_text(R"(, "rope_theta": Inf)"), Contains("not valid JSON"));
}

TEST_CASE("config: weights that ModelOpt quantised are refused by its own file") {
  const TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", base("llama").dump());
  const auto format = [&](const json& algorithm) {
    test::write_file(
        dir.path() / "hf_quant_config.json",
        json{{"quantization", {{"quant_algo", algorithm}, {"kv_cache_quant_algo", "FP8"}}}}.dump());
  };
  format("NVFP4");
  CHECK_THROWS_WITH(load_model_config(dir.path()),
                    Contains("hf_quant_config.json beside it says that ModelOpt") &&
                        Contains("quant_algo NVFP4"));
  format(nullptr);  // of the cache in servers alone
  CHECK_NOTHROW(load_model_config(dir.path()));
}

TEST_CASE("config: beyond the length where others attend in chunks documents are refused") {
  const json chunks{
      {"chunk_size", 262144}, {"local_size", 8192}, {"original_max_position_embeddings", 1024}};
  const ModelConfig config = load(with(base("qwen2"), {{"dual_chunk_attention_config", chunks}}));
  CHECK(longest_exact_document(config) == 1024);
  CHECK(num_positions(config) == 1024);
  CHECK(config.on_disk.fields_passed_over ==
        std::vector<std::string>{"dual_chunk_attention_config"});
  CHECK_THROWS_WITH(load(with(base("qwen2"), {{"dual_chunk_attention_config", {{"a", 1}}}})),
                    Contains("'original_max_position_embeddings' is missing"));
}

// A multimodal model's file whose text part has these fields.
json wrapped(const std::string& model_type, const json& text, const json& around = json::object()) {
  json file{{"architectures", {"AnyForConditionalGeneration"}},
            {"model_type", model_type},
            {"text_config", text},
            {"vision_config", {{"depth", 2}}}};
  file.update(around);
  return file;
}

TEST_CASE("config: Gemma 3's larger models leave out what has the class's defaults") {
  const json text{{"model_type", "gemma3_text"},
                  {"hidden_size", 2560},
                  {"intermediate_size", 10240},
                  {"num_hidden_layers", 34},
                  {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                  {"sliding_window", 1024}};
  const json file = wrapped("gemma3", text,
                            {{"boi_token_index", 255999},
                             {"eoi_token_index", 256000},
                             {"eos_token_id", {1, 106}},
                             {"image_token_index", 262144},
                             {"mm_tokens_per_image", 256}});
  const ModelConfig config = load(file);
  CHECK((config.num_attention_heads == 8 && config.num_key_value_heads == 4 &&
         config.head_dim == 256 && config.vocab_size == 262208 &&
         config.max_position_embeddings == 131072 && config.tie_word_embeddings));
  CHECK(config.eos_token_ids == std::vector<int64_t>{1, 106});  // said outside alone
  CHECK(trunk_prefix(config) == "language_model.model.");
  CHECK(config.on_disk.head == "language_model.lm_head.weight");
  CHECK(config.on_disk.fields_passed_over.empty());
  CHECK((config.window(4) == 1024 && config.window(5) == 0));
  const json written = json::parse(model_config_json(config, "bfloat16"));
  CHECK(written["model_type"] == "gemma3");
  CHECK(written["text_config"]["vocab_size"] == 262208);
  CHECK(json::parse(model_config_json(load(written), "bfloat16")) == written);
}

TEST_CASE("config: Qwen2.5-VL's text part may stand in config.json itself") {
  const json mrope{{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  const json flat = with(base("qwen2_5_vl"), {{"rope_scaling", mrope},
                                              {"use_sliding_window", false},
                                              {"sliding_window", 32768},
                                              {"max_window_layers", 28},
                                              {"vision_token_id", 90},
                                              {"image_token_id", 91},
                                              {"vision_config", {{"depth", 2}}}});
  json text = flat;
  for (const char* key : {"vision_token_id", "image_token_id", "vision_config"}) {
    text.erase(key);
  }
  text["model_type"] = "qwen2_5_vl_text";
  // Some programs write the text's fields both inside and around.
  const json nested = with(flat, {{"text_config", text}});
  for (const json& file : {flat, nested}) {
    const ModelConfig config = load(file);
    CHECK((config.model_type == "qwen2" && config.attention.qkv_bias));
    CHECK(config.rope_scaling == RopeScaling());
    CHECK(trunk_prefix(config) == "model.");
    const json written = json::parse(model_config_json(config, "bfloat16"));
    CHECK(written["model_type"] == "qwen2_5_vl");
    const json& target = written.contains("text_config") ? written["text_config"] : written;
    CHECK(target["rope_parameters"]["mrope_section"] == mrope["mrope_section"]);
    CHECK(target["rope_scaling"]["mrope_section"] == mrope["mrope_section"]);
    CHECK(json::parse(model_config_json(load(written), "bfloat16")) == written);
  }
  CHECK_THROWS_WITH(load(with(flat, {{"clip_qkv", 1.0}})), Contains("'clip_qkv' is a field"));
}

TEST_CASE("config: other multimodal models are read by their text part") {
  const json experts{{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}};
  const ModelConfig moe = load(wrapped(
      "qwen3_vl_moe", with(base("qwen3_vl_moe_text"), with(experts, {{"norm_topk_prob", false}})),
      {{"tie_word_embeddings", false}}));
  CHECK((moe.model_type == "qwen3_moe" && moe.experts.normalise_weights &&
         moe.on_disk.stacks == ExpertStacks::kInputsFirst));
  CHECK(load(wrapped("qwen3_vl", base("qwen3_vl_text"))).model_type == "qwen3");
  const ModelConfig mistral =
      load(wrapped("mistral3", with(base("mistral"), {{"sliding_window", nullptr}}),
                   {{"spatial_merge_size", 2},
                    {"projector_hidden_act", "gelu"},
                    {"vision_feature_layer", -1},
                    {"multimodal_projector_bias", false}}));
  CHECK((mistral.model_type == "mistral" && trunk_prefix(mistral) == "language_model.model."));
  CHECK_THROWS_WITH(load(wrapped("mistral3", base("ministral3"))),
                    Contains("'model_type' is 'ministral3', expected mistral"));
}

TEST_CASE("config: Kimi K2 is DeepSeek-V3 under another name") {
  const ModelConfig config = load(with(deepseek(), {{"model_type", "kimi_k2"}}));
  CHECK(config.latent == load(deepseek()).latent);
  CHECK(json::parse(model_config_json(config, "bfloat16"))["model_type"] == "kimi_k2");
}

TEST_CASE("config: OLMo norms what mixers add, and scales RoPE where all tokens are attended to") {
  const ModelConfig olmo2 = load(base("olmo2"));
  CHECK((olmo2.norm_place == NormPlace::kAfter && olmo2.attention.joint_qk_norm));
  const json yarn{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}}},
                  {"rope_theta", 5e5},
                  {"num_hidden_layers", 4}};
  const ModelConfig olmo3 = load(with(base("olmo3"), yarn));
  CHECK((olmo3.window(0) == 4096 && olmo3.window(3) == 0));
  CHECK((olmo3.block(0).local_rope && !olmo3.block(3).local_rope));
  CHECK(olmo3.local_rope_theta == 5e5);
  CHECK_FALSE(load(base("olmo3")).block(0).local_rope);
}

TEST_CASE("config: Granite's factors, Phi-3's tensors and MiniMax-M2's experts") {
  const ModelConfig granite = load(with(base("granite"), {{"embedding_multiplier", 12.0},
                                                          {"attention_multiplier", 0.015625},
                                                          {"residual_multiplier", 0.22},
                                                          {"logits_scaling", 8.0}}));
  CHECK((granite.multipliers.embedding == 12.0 && granite.softmax_scale() == 0.015625 &&
         granite.multipliers.residual == 0.22 && granite.multipliers.logits_divisor == 8.0));
  CHECK(load(base("granite")).softmax_scale() == 1.0);
  CHECK_THROWS_WITH(load(with(base("granite"), {{"logits_scaling", 0}})),
                    Contains("'logits_scaling' is 0, expected more than 0"));

  const json longrope{{"type", "longrope"},
                      {"short_factor", {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
                      {"long_factor", {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}};
  const json phi4_mini{{"partial_rotary_factor", 0.75},
                       {"original_max_position_embeddings", 1024},
                       {"rope_scaling", longrope},
                       {"sliding_window", 262144},
                       {"full_attn_mod", 1},
                       {"interpolate_factor", 1},
                       {"lm_head_bias", false}};
  const ModelConfig phi = load(with(base("phi3"), phi4_mini));
  CHECK((phi.fused_projections && phi.attention.rotary_dim == 12 && phi.window(1) == 262144));
  CHECK(std::get<LongRope>(phi.rope_scaling).original_max_position_embeddings == 1024);
  CHECK_THROWS_WITH(load(with(base("phi3"), with(phi4_mini, {{"full_attn_mod", 2}}))),
                    Contains("'full_attn_mod' is a field"));
  CHECK((load(base("phi3")).attention.rotary_dim == 0 && load(base("phi3")).window(0) == 0));

  const json experts = minimax_fields();
  const ModelConfig minimax = load(with(base("minimax_m2"), experts));
  CHECK((minimax.attention.joint_qk_norm && minimax.attention.rotary_dim == 8 &&
         minimax.experts.router == RouterKind::kSigmoid && minimax.experts.normalise_weights &&
         experts_module(minimax.experts) == "block_sparse_moe"));
  for (const json& other :
       {json{{"scoring_func", "softmax"}}, json{{"use_qk_norm", false}},
        json{{"shared_intermediate_size", 64}}, json{{"attn_type_list", {1, 0}}}}) {
    CHECK_THROWS_WITH(load(with(base("minimax_m2"), with(experts, other))),
                      Contains("'" + other.begin().key() + "' "));
  }
}

}  // namespace
}  // namespace ringside::engine
