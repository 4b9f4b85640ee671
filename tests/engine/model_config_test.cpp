// A config.json key that is overlooked trains another model without an error: RoPE in both
// spellings, biases, eos ids, and everything the decoder cannot do must be read or refused by name.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/architectures/architecture.h"
#include "engine/io/model_config_json.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;
using test::TemporaryDirectory;

json base(const std::string& model_type) {
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

json gpt_oss_fields() {
  return {{"num_local_experts", 4},
          {"num_experts_per_tok", 2},
          {"rope_parameters",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"truncate", false},
            {"original_max_position_embeddings", 4096}}}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

ModelConfig load(const json& config, const json& generation = nullptr) {
  const TemporaryDirectory dir;
  test::write_file(dir.path() / "config.json", config.dump());
  if (!generation.is_null()) {
    test::write_file(dir.path() / "generation_config.json", generation.dump());
  }
  return load_model_config(dir.path());
}

TEST_CASE("config: defaults follow the architecture") {
  const ModelConfig llama = load(base("llama"));
  CHECK(llama.model_type == "llama");
  CHECK(llama.head_dim == 16);
  CHECK(llama.rope_theta == 10000.0);
  CHECK_FALSE((llama.attention.qkv_bias || llama.attention.o_bias || llama.mlp_bias ||
               llama.attention.qk_norm));
  CHECK_FALSE(llama.tie_word_embeddings);
  CHECK(llama.eos_token_ids.empty());

  const ModelConfig qwen2 = load(base("qwen2"));
  CHECK((qwen2.attention.qkv_bias && !qwen2.attention.o_bias && !qwen2.attention.qk_norm));

  const ModelConfig qwen3 = load(base("qwen3"));
  CHECK(qwen3.head_dim == 128);  // Qwen3Config's own default, whatever hidden_size says
  CHECK((qwen3.attention.qk_norm && !qwen3.attention.qkv_bias));

  const ModelConfig arcee = load(base("arcee"));
  CHECK(arcee.head_dim == 16);
  CHECK_FALSE((arcee.attention.qkv_bias || arcee.attention.o_bias || arcee.mlp_bias));
  CHECK((arcee.block(0).channel_mixer == ChannelMixerKind::kSquaredReluMlp &&
         arcee.block(1).channel_mixer == ChannelMixerKind::kSquaredReluMlp));
  CHECK_THROWS_WITH(load(with(base("arcee"), {{"hidden_act", "silu"}})),
                    Contains("'hidden_act' is 'silu', expected relu2"));

  const ModelConfig seed_oss = load(with(base("seed_oss"), {{"residual_dropout", 0.1}}));
  CHECK(seed_oss.head_dim == 128);
  CHECK((seed_oss.attention.qkv_bias && !seed_oss.attention.o_bias && !seed_oss.mlp_bias));
  CHECK(load(with(base("seed_oss"), {{"head_dim", nullptr}})).head_dim == 16);
}

TEST_CASE("config: RoPE is read as transformers 4 and 5 write it") {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const auto check = [](const ModelConfig& config) {
    CHECK(config.rope_theta == 500000.0);
    CHECK(config.rope_scaling == RopeScaling(Llama3Rope{32.0, 1.0, 4.0, 8192}));
  };
  check(load(with(base("llama"), {{"rope_theta", 500000.0},
                                  {"rope_scaling", with(llama3, {{"rope_type", "llama3"}})}})));
  check(load(with(base("llama"), {{"rope_theta", 500000.0},
                                  {"rope_scaling", with(llama3, {{"type", "llama3"}})}})));
  check(load(with(base("llama"), {{"rope_parameters", with(llama3, {{"rope_type", "llama3"},
                                                                    {"rope_theta", 500000.0}})}})));
  const ModelConfig plain = load(
      with(base("qwen3"), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}));
  CHECK(plain.rope_theta == 1e6);
  CHECK(plain.rope_scaling == RopeScaling());
}

json rope_of(const std::string& type, const json& fields) {
  return {{"rope_parameters", with({{"rope_type", type}, {"rope_theta", 1e6}}, fields)}};
}

// head_dim 16.
json divisors(double first) { return {first, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0}; }

// Every rope type as config.json states it, and as it is read.
std::vector<std::pair<json, RopeScaling>> rope_types() {
  const std::vector<double> low = divisors(1.0), high = divisors(1.25);
  return {
      {rope_of("default", json::object()), RopeScaling()},
      {rope_of("linear", {{"factor", 4.0}}), LinearRope{4.0}},
      {rope_of("dynamic", {{"factor", 2}}), DynamicRope{2.0}},
      {rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 1024}}),
       YarnRope{4.0, 1024, {}, {}, {}, {}, {}, {}}},
      {rope_of("yarn", {{"factor", 4.0}}), YarnRope{4.0, 4096, {}, {}, {}, {}, {}, {}}},
      {rope_of("yarn", {{"factor", 4.0},
                        {"original_max_position_embeddings", 1024},
                        {"attention_factor", 1.25},
                        {"beta_fast", 16},
                        {"beta_slow", 2},
                        {"mscale", 0.7},
                        {"mscale_all_dim", 0.5},
                        {"truncate", false}}),
       YarnRope{4.0, 1024, 1.25, 16.0, 2.0, 0.7, 0.5, false}},
      {rope_of("longrope", {{"short_factor", divisors(1.0)},
                            {"long_factor", divisors(1.25)},
                            {"original_max_position_embeddings", 1024}}),
       LongRope{low, high, 1024, {}, {}}},
      {rope_of("longrope", {{"short_factor", divisors(1.0)},
                            {"long_factor", divisors(1.25)},
                            {"original_max_position_embeddings", 1024},
                            {"factor", 8.0},
                            {"attention_factor", 1.2}}),
       LongRope{low, high, 1024, 8.0, 1.2}},
  };
}

TEST_CASE("config: every rope type is read, and read again from what is written") {
  for (const auto& [written, expected] : rope_types()) {
    INFO(written.dump());
    const ModelConfig config = load(with(base("llama"), written));
    CHECK(config.rope_theta == 1e6);
    CHECK(config.rope_scaling == expected);
    const ModelConfig again = load(json::parse(model_config_json(config, "bfloat16")));
    CHECK(again.rope_theta == 1e6);
    CHECK(again.rope_scaling == expected);
  }
  // Outside the block it counts first, as in transformers.
  const json outside =
      with(rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 1024}}),
           {{"original_max_position_embeddings", 2048}});
  CHECK(load(with(base("llama"), outside)).rope_scaling ==
        RopeScaling(YarnRope{4.0, 2048, {}, {}, {}, {}, {}, {}}));
}

TEST_CASE("config: a wrong rope block is refused by the field") {
  const auto refused = [](const json& rope, const std::string& key) {
    INFO(rope.dump());
    CHECK_THROWS_WITH(load(with(base("llama"), rope)),
                      Contains("config.json") && Contains("'" + key + "'"));
  };
  refused(rope_of("su", json::object()), "rope_type");
  refused(rope_of("mrope", json::object()), "rope_type");
  refused(rope_of("default", {{"factor", 4.0}}), "factor");
  refused(rope_of("linear", json::object()), "factor");
  refused(rope_of("linear", {{"factor", 0.5}}), "factor");
  refused(rope_of("dynamic", {{"factor", 2.0}, {"alpha", 1000.0}}), "alpha");
  CHECK(load(with(base("llama"), rope_of("yarn", {{"factor", 4.0}, {"finetuned", true}})))
            .on_disk.fields_passed_over == std::vector<std::string>{"rope_parameters.finetuned"});
  refused(rope_of("yarn", {{"factor", 4.0}, {"attn_factor", 1.5}}), "attn_factor");
  refused(rope_of("yarn", {{"factor", 4.0}, {"attention_factor", -1.0}}), "attention_factor");
  refused(rope_of("yarn", {{"factor", 4.0}, {"beta_fast", 0.5}}), "beta_fast");
  refused(rope_of("yarn", {{"factor", 4.0}, {"rope_theta", 1.0}}), "rope_theta");
  refused(rope_of("yarn", {{"factor", "4"}}), "factor");
  json longrope = rope_of("longrope", {{"short_factor", divisors(1.0)},
                                       {"long_factor", divisors(1.0)},
                                       {"original_max_position_embeddings", 1024}});
  longrope["rope_parameters"]["long_factor"].push_back(7.0);
  refused(longrope, "long_factor");
  longrope["rope_parameters"]["long_factor"] = divisors(0.0);
  refused(longrope, "long_factor");
  longrope["rope_parameters"].erase("long_factor");
  refused(longrope, "long_factor");
}

TEST_CASE("config: the positions of a model and its longest exact document follow its rope type") {
  const auto lengths = [](const json& rope, int64_t max_document_tokens) {
    ModelConfig config = load(with(base("llama"), rope));
    config.max_document_tokens = max_document_tokens;
    return std::pair(num_positions(config), longest_exact_document(config));
  };
  CHECK(lengths(rope_of("default", json::object()), 0) == std::pair<int64_t, int64_t>(4096, 0));
  CHECK(lengths(rope_of("default", json::object()), 100) == std::pair<int64_t, int64_t>(100, 100));
  CHECK(lengths(rope_of("linear", {{"factor", 2.5}}), 0).first == 10240);
  // Qwen's model cards keep max_position_embeddings and add the block.
  CHECK(lengths(rope_of("yarn", {{"factor", 4.0}}), 0) == std::pair<int64_t, int64_t>(16384, 0));
  CHECK(lengths(rope_of("yarn", {{"factor", 4.0}, {"original_max_position_embeddings", 512}}), 0)
            .first == 4096);
  CHECK(lengths(rope_of("dynamic", {{"factor", 4.0}}), 0) ==
        std::pair<int64_t, int64_t>(4096, 4096));
  CHECK(lengths(rope_of("dynamic", {{"factor", 4.0}}), 9999).second == 4096);
}

TEST_CASE("config: eos ids are one or several, and generation_config.json decides") {
  CHECK(load(with(base("llama"), {{"eos_token_id", 2}})).eos_token_ids == std::vector<int64_t>{2});
  CHECK(load(with(base("llama"), {{"eos_token_id", {2, 3}}})).eos_token_ids ==
        std::vector<int64_t>{2, 3});
  CHECK(
      load(with(base("llama"), {{"eos_token_id", 2}}), {{"eos_token_id", {5, 6}}}).eos_token_ids ==
      std::vector<int64_t>{5, 6});
  CHECK(load(with(base("llama"), {{"eos_token_id", 2}}), {{"do_sample", true}}).eos_token_ids ==
        std::vector<int64_t>{2});
  CHECK_THROWS_WITH(load(with(base("llama"), {{"eos_token_id", 97}})), Contains("'eos_token_id'"));
}

TEST_CASE("config: what the decoder cannot do is refused by file and key") {
  const auto refused = [](const json& changes, const std::string& key) {
    CHECK_THROWS_WITH(load(with(base("qwen3"), changes)),
                      Contains("config.json") && Contains("'" + key + "'"));
  };
  refused({{"model_type", "gemma2"}}, "model_type");
  refused({{"hidden_act", "gelu"}}, "hidden_act");
  refused({{"use_sliding_window", true}, {"sliding_window", 0}}, "sliding_window");
  refused({{"layer_types", {"full_attention", "chunked_attention"}}}, "layer_types");
  refused({{"layer_types", {"full_attention"}}}, "layer_types");
  refused({{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types");
  refused({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
  refused(
      {{"quantization_config", {{"quant_method", "bitsandbytes"}, {"bnb_4bit_quant_type", "fp4"}}}},
      "quantization_config");
  refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 4.0}}}}, "low_freq_factor");
  refused({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  refused({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
          "full_attention");
  refused({{"num_attention_heads", 3}}, "num_attention_heads");
  refused({{"hidden_size", "64"}}, "hidden_size");
  refused({{"hidden_size", 0}}, "hidden_size");
  refused({{"hidden_size", nullptr}}, "hidden_size");
  refused({{"head_dim", 15}}, "head_dim");
  refused({{"tie_word_embeddings", 1}}, "tie_word_embeddings");
  CHECK_THROWS_WITH(load_model_config("/nonexistent/config.json"), Contains("/nonexistent"));
}

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
                    Contains("hf_quant_config.json beside it says quant_algo NVFP4"));
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

TEST_CASE("config: bookkeeping of published files is accepted") {
  CHECK_THROWS_WITH(load(with(base("qwen2"), {{"use_mrope", true}})), Contains("'use_mrope'"));
  // The keys of Qwen2.5's, Qwen3's and Mistral-Nemo's own files.
  const json hub = with(base("qwen2"), {{"architectures", {"Qwen2ForCausalLM"}},
                                        {"attention_dropout", 0.0},
                                        {"bos_token_id", 1},
                                        {"initializer_range", 0.02},
                                        {"max_window_layers", 28},
                                        {"sliding_window", 131072},
                                        {"torch_dtype", "bfloat16"},
                                        {"transformers_version", "4.43.1"},
                                        {"use_cache", true},
                                        {"use_mrope", false},
                                        {"use_sliding_window", false}});
  CHECK(load(hub).attention.qkv_bias);
  CHECK(load(with(base("qwen3"), {{"attention_bias", false}, {"head_dim", 32}})).head_dim == 32);
  const ModelConfig nemo =
      load(with(base("mistral"), {{"head_dim", 32}, {"sliding_window", nullptr}}));
  CHECK((nemo.head_dim == 32 && !nemo.attention.qk_norm && !nemo.attention.qkv_bias));
}

TEST_CASE("config: windows are those of transformers' classes") {
  using Windows = std::vector<int64_t>;
  const auto windows = [](const std::string& type, const json& changes) {
    const ModelConfig config = load(with(base(type), with(changes, {{"num_hidden_layers", 3}})));
    Windows all;
    for (int64_t layer = 0; layer < 3; ++layer) {
      all.push_back(config.window(layer));
    }
    const ModelConfig again = load(json::parse(model_config_json(config, "float32")));
    CHECK((again.blocks == config.blocks));
    return all;
  };
  CHECK(windows("mistral", {{"sliding_window", 7}}) == Windows{7, 7, 7});
  CHECK(windows("mistral", {{"sliding_window", nullptr}}) == Windows{0, 0, 0});
  CHECK(windows("mistral", json::object()) == Windows{4096, 4096, 4096});
  const json used{{"use_sliding_window", true}, {"sliding_window", 5}};
  for (const char* type : {"qwen2", "qwen3"}) {
    CHECK(windows(type, {{"sliding_window", 5}}) == Windows{0, 0, 0});
    CHECK(windows(type, used) == Windows{0, 0, 0});  // from layer 28 on
    CHECK(windows(type, with(used, {{"max_window_layers", 1}})) == Windows{0, 5, 5});
    const json types{"sliding_attention", "full_attention", "sliding_attention"};
    CHECK(windows(type, with(used, {{"layer_types", types}})) == Windows{5, 0, 5});
  }
  CHECK(windows("gemma3_text", {{"sliding_window", 5}, {"sliding_window_pattern", 2}}) ==
        Windows{5, 0, 5});
  CHECK(windows("exaone4", {{"sliding_window", 5}, {"sliding_window_pattern", 2}}) ==
        Windows{5, 0, 5});
  CHECK(windows("exaone4", json::object()) == Windows{4096, 4096, 4096});
  const json some_rope{{"no_rope_layers", {1, 0, 1}}};
  CHECK(windows("smollm3", with(used, some_rope)) == Windows{0, 5, 0});
  CHECK(windows("smollm3", with(some_rope, {{"sliding_window", 5}})) == Windows{0, 0, 0});
}

TEST_CASE("config: layers without RoPE are those of transformers' classes") {
  using Layers = std::vector<bool>;
  const auto without_rope = [](const std::string& type, const json& changes) {
    const ModelConfig config = load(with(base(type), with(changes, {{"num_hidden_layers", 4}})));
    Layers all;
    for (int64_t layer = 0; layer < 4; ++layer) {
      all.push_back(config.block(layer).no_rope);
    }
    const ModelConfig again = load(json::parse(model_config_json(config, "float32")));
    CHECK((again.blocks == config.blocks));
    return all;
  };
  // SmolLM3's own file has max_window_layers, too.
  CHECK(without_rope("smollm3", {{"max_window_layers", 28}}) == Layers{0, 0, 0, 1});
  CHECK(without_rope("smollm3", {{"no_rope_layer_interval", 2}}) == Layers{0, 1, 0, 1});
  CHECK(without_rope("smollm3", {{"no_rope_layers", {1, 0, 0, 1}}}) == Layers{0, 1, 1, 0});
  CHECK_THROWS_WITH(without_rope("smollm3", {{"no_rope_layers", {1, 0, 0}}}),
                    Contains("'no_rope_layers' has 3 layers"));
  CHECK(without_rope("exaone4", json::object()) == Layers{0, 0, 0, 1});
  CHECK(without_rope("exaone4", {{"sliding_window", nullptr}}) == Layers{0, 0, 0, 0});
  const json types(4, "full_attention");
  CHECK(without_rope("exaone4", {{"layer_types", types}}) == Layers{1, 1, 1, 1});
  const json letters{{"sliding_window_pattern", "LLLG"}};
  CHECK(without_rope("exaone4", with(letters, {{"layer_types", types}})) == Layers{1, 1, 1, 1});
  CHECK_THROWS_WITH(without_rope("exaone4", letters), Contains("expected a number"));
  CHECK_THROWS_WITH(without_rope("exaone4", {{"sliding_window_pattern", 0}}),
                    Contains("'sliding_window_pattern' is 0"));
}

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

json minimax_fields() {
  return {{"head_dim", 16},
          {"rotary_dim", 8},
          {"num_local_experts", 4},
          {"num_experts_per_tok", 2},
          {"scoring_func", "sigmoid"},
          {"use_routing_bias", true},
          {"use_qk_norm", true},
          {"qk_norm_type", "per_layer"}};
}

json glm4_moe_fields() {
  return {{"n_routed_experts", 6},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 16},
          {"n_group", 1},
          {"topk_group", 1},
          {"routed_scaling_factor", 1.5},
          {"first_k_dense_replace", 1}};
}

// With the fields that DeepSeek's own files have beyond transformers'.
json deepseek() {
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
  refuses({{"quantization_config", {{"quant_method", "fp8"}}}}, "'quantization_config' is {");
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
  CHECK(config.on_disk.layers_left_out == 1);
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
  CHECK(other.on_disk.layers_left_out == 1);
  CHECK_THROWS_WITH(load(with(fields, {{"topk_method", "greedy"}})),
                    Contains("'topk_method' is 'greedy', expected noaux_tc"));
}

json hybrid(const std::string& model_type) {
  json fields = with(base(model_type), {{"linear_num_key_heads", 2},
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
  CHECK((granite.embedding_multiplier == 12.0 && granite.softmax_scale() == 0.015625 &&
         granite.residual_multiplier == 0.22 && granite.logits_divisor == 8.0));
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

TEST_CASE("config: every architecture writes what it reads") {
  for (const Architecture* architecture : architectures()) {
    INFO(architecture->model_type);
    json written_by_others = base(architecture->model_type);
    if (architecture->model_type == std::string("qwen3_moe")) {
      written_by_others.update({{"num_experts", 4},
                                {"num_experts_per_tok", 2},
                                {"moe_intermediate_size", 16},
                                {"mlp_only_layers", {1}}});
    }
    if (architecture->model_type == std::string("deepseek_v3") ||
        architecture->model_type == std::string("kimi_k2")) {
      written_by_others = with(deepseek(), {{"model_type", architecture->model_type}});
    }
    if (architecture->model_type == std::string("qwen3_next") ||
        std::string(architecture->model_type).starts_with("qwen3_5")) {
      written_by_others = hybrid(architecture->model_type);
    }
    if (architecture->model_type == std::string("minimax_m2")) {
      written_by_others.update(minimax_fields());
    }
    if (architecture->model_type == std::string("glm4_moe")) {
      written_by_others.update(glm4_moe_fields());
    }
    if (architecture->model_type == std::string("gpt_oss")) {
      written_by_others.update(gpt_oss_fields());
    }
    const ModelConfig config = load(written_by_others);
    const json written = json::parse(model_config_json(config, "float32"));
    CHECK(written["architectures"] == json{architecture->class_name});
    CHECK(json::parse(model_config_json(load(written), "float32")) == written);
  }
}

TEST_CASE("config: what is written is read back") {
  ModelConfig config = load(with(base("llama"), {{"attention_bias", true}, {"mlp_bias", true}}));
  config.rope_theta = 12345.0;
  config.rope_scaling = Llama3Rope{16.0, 1.5, 5.0, 128};
  config.eos_token_ids = {3, 4};
  config.pad_token_id = 0;
  config.tie_word_embeddings = true;
  const ModelConfig again = load(json::parse(model_config_json(config, "bfloat16")),
                                 json::parse(generation_config_json(config)));
  CHECK(again.model_type == config.model_type);
  CHECK(again.hidden_size == config.hidden_size);
  CHECK(again.head_dim == config.head_dim);
  CHECK(again.rms_norm_eps == config.rms_norm_eps);
  CHECK((again.attention.qkv_bias && again.attention.o_bias && again.mlp_bias &&
         again.tie_word_embeddings));
  CHECK(again.rope_theta == config.rope_theta);
  CHECK(again.rope_scaling == config.rope_scaling);
  CHECK(again.eos_token_ids == config.eos_token_ids);
  CHECK(again.pad_token_id == config.pad_token_id);
  CHECK_FALSE(again.bos_token_id.has_value());
}

}  // namespace
}  // namespace ringside::engine
