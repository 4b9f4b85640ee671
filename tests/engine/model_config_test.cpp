// A config.json key that is overlooked trains another model without an error: RoPE in both
// spellings, biases, eos ids, and everything the decoder cannot do must be read or refused by name.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/io/model_config_json.h"
#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;
using test::TemporaryDirectory;

json base(const std::string& model_type) {
  return {{"model_type", model_type},       {"vocab_size", 97},       {"hidden_size", 64},
          {"intermediate_size", 96},        {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},       {"hidden_act", "silu"},   {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 4096}};
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
  CHECK(llama.architecture == Architecture::kLlama);
  CHECK(llama.head_dim == 16);
  CHECK(llama.rope_theta == 10000.0);
  CHECK_FALSE((llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm));
  CHECK_FALSE(llama.tie_word_embeddings);
  CHECK(llama.eos_token_ids.empty());

  const ModelConfig qwen2 = load(base("qwen2"));
  CHECK((qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm));

  const ModelConfig qwen3 = load(base("qwen3"));
  CHECK(qwen3.head_dim == 128);  // Qwen3Config's own default, whatever hidden_size says
  CHECK((qwen3.qk_norm && !qwen3.qkv_bias));
}

TEST_CASE("config: RoPE is read as transformers 4 and 5 write it") {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const auto check = [](const ModelConfig& config) {
    CHECK(config.rope_theta == 500000.0);
    REQUIRE(config.rope_scaling.has_value());
    CHECK(config.rope_scaling->factor == 32.0);
    CHECK(config.rope_scaling->original_max_position_embeddings == 8192);
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
  CHECK_FALSE(plain.rope_scaling.has_value());
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
  refused({{"use_sliding_window", true}}, "use_sliding_window");
  refused({{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types");
  refused({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
  refused(
      {{"quantization_config", {{"quant_method", "bitsandbytes"}, {"bnb_4bit_quant_type", "fp4"}}}},
      "quantization_config");
  refused({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}}, "rope_type");
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

TEST_CASE("config: what is written is read back") {
  ModelConfig config = load(with(base("llama"), {{"attention_bias", true}, {"mlp_bias", true}}));
  config.rope_theta = 12345.0;
  config.rope_scaling = Llama3RopeScaling{16.0, 1.5, 5.0, 128};
  config.eos_token_ids = {3, 4};
  config.pad_token_id = 0;
  config.tie_word_embeddings = true;
  const ModelConfig again = load(json::parse(model_config_json(config, "bfloat16")),
                                 json::parse(generation_config_json(config)));
  CHECK(again.architecture == config.architecture);
  CHECK(again.hidden_size == config.hidden_size);
  CHECK(again.head_dim == config.head_dim);
  CHECK(again.rms_norm_eps == config.rms_norm_eps);
  CHECK((again.qkv_bias && again.o_bias && again.mlp_bias && again.tie_word_embeddings));
  CHECK(again.rope_theta == config.rope_theta);
  REQUIRE(again.rope_scaling.has_value());
  CHECK(again.rope_scaling->low_freq_factor == 1.5);
  CHECK(again.rope_scaling->high_freq_factor == 5.0);
  CHECK(again.eos_token_ids == config.eos_token_ids);
  CHECK(again.pad_token_id == config.pad_token_id);
  CHECK_FALSE(again.bos_token_id.has_value());
}

}  // namespace
}  // namespace ringside::engine
