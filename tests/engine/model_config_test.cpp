// A config.json key that is overlooked trains another model without an error: RoPE in both
// spellings, biases, eos ids, and everything the decoder cannot do must be read or refused by name.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
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

TEST_CASE("quantised weights that are not read are refused with what to do") {
  const auto quantised = [](const json& fields) {
    return load(with(base("qwen3"), {{"quantization_config", fields}}));
  };
  const auto refused = [&](const json& fields, const char* advice) {
    CHECK_THROWS_WITH(quantised(fields), Contains("'quantization_config' is") && Contains(advice));
  };
  for (const char* method : {"awq", "gptq", "modelopt", "auto-round"}) {
    refused({{"quant_method", method}}, "train the unquantised model that it was made from");
  }
  refused({{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}, ".dequantize()");
  refused({{"quant_method", "mxfp4"}}, "Mxfp4Config(dequantize=True)");
  refused({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "expected none");
  const auto compressed = [](const json& weights, const char* format) {
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  };
  const char* run_decompressed = "CompressedTensorsConfig(run_compressed=False)";
  refused(compressed({{"num_bits", 4}, {"type", "int"}}, "pack-quantized"), run_decompressed);
  refused(compressed({{"num_bits", 8}, {"type", "int"}}, "int-quantized"), run_decompressed);
  refused(compressed({{"num_bits", 4}, {"type", "float"}}, "nvfp4-pack-quantized"),
          run_decompressed);
  CHECK_NOTHROW(quantised(compressed({{"num_bits", 8}, {"type", "float"}}, "float-quantized")));
  CHECK_NOTHROW(quantised({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}));
}

TEST_CASE("a GGUF file and a directory of ModelOpt are refused with what to do") {
  const TemporaryDirectory dir;
  const auto file = dir.path() / "model.gguf";
  test::write_file(file, "GGUF");
  for (const auto& path : {dir.path(), file}) {
    CHECK_THROWS_WITH(load_model_config(path),
                      Contains("model.gguf is a GGUF file") && Contains("recipes/from_gguf.py"));
  }
  test::write_file(dir.path() / "config.json", base("qwen3").dump());
  CHECK_NOTHROW(load_model_config(dir.path()));
  test::write_file(dir.path() / "hf_quant_config.json", "{}");
  CHECK_THROWS_WITH(load_model_config(dir.path()),
                    Contains("hf_quant_config.json") && Contains("unquantised model"));
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
