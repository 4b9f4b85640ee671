// Guards: vision_config read otherwise than transformers' classes read it; a field that changes the
// tower and is passed over; a config.json that does not come back as it was read; tensors of a
// tower that are left out of a saved model, or read where only the text was asked for.
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/io/hf_directory.h"
#include "engine/models/decoder_units.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_tower.h"

namespace ringside::engine {
namespace {

using nlohmann::json;

// The vision_config of models as they are published, and their text's fields that matter to it.
json qwen2_5_vl_7b() {
  return {{"architectures", {"Qwen2_5_VLForConditionalGeneration"}},
          {"model_type", "qwen2_5_vl"},
          {"hidden_act", "silu"},
          {"hidden_size", 3584},
          {"image_token_id", 151655},
          {"intermediate_size", 18944},
          {"max_position_embeddings", 128000},
          {"max_window_layers", 28},
          {"num_attention_heads", 28},
          {"num_hidden_layers", 28},
          {"num_key_value_heads", 4},
          {"rms_norm_eps", 1e-06},
          {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}},
          {"rope_theta", 1000000.0},
          {"sliding_window", 32768},
          {"tie_word_embeddings", false},
          {"use_sliding_window", false},
          {"vision_config",
           {{"depth", 32},
            {"fullatt_block_indexes", {7, 15, 23, 31}},
            {"hidden_act", "silu"},
            {"hidden_size", 1280},
            {"in_chans", 3},
            {"intermediate_size", 3420},
            {"num_heads", 16},
            {"out_hidden_size", 3584},
            {"patch_size", 14},
            {"spatial_merge_size", 2},
            {"spatial_patch_size", 14},
            {"temporal_patch_size", 2},
            {"tokens_per_second", 2},
            {"window_size", 112}}},
          {"vision_end_token_id", 151653},
          {"vocab_size", 152064}};
}

json qwen2_vl_7b() {
  json config = qwen2_5_vl_7b();
  config["model_type"] = "qwen2_vl";
  config["vision_config"] = {{"depth", 32},
                             {"embed_dim", 1280},
                             {"hidden_size", 3584},
                             {"in_chans", 3},
                             {"mlp_ratio", 4},
                             {"num_heads", 16},
                             {"patch_size", 14},
                             {"spatial_merge_size", 2},
                             {"spatial_patch_size", 14},
                             {"temporal_patch_size", 2}};
  return config;
}

json qwen3_vl_4b() {
  return {
      {"architectures", {"Qwen3VLForConditionalGeneration"}},
      {"model_type", "qwen3_vl"},
      {"image_token_id", 151655},
      {"text_config",
       {{"model_type", "qwen3_vl_text"},
        {"attention_bias", false},
        {"head_dim", 128},
        {"hidden_act", "silu"},
        {"hidden_size", 2560},
        {"intermediate_size", 9728},
        {"max_position_embeddings", 262144},
        {"num_attention_heads", 32},
        {"num_hidden_layers", 36},
        {"num_key_value_heads", 8},
        {"rms_norm_eps", 1e-06},
        {"rope_scaling",
         {{"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}}},
        {"rope_theta", 5000000},
        {"tie_word_embeddings", true},
        {"vocab_size", 151936}}},
      {"tie_word_embeddings", true},
      {"vision_config",
       {{"deepstack_visual_indexes", {5, 11, 17}},
        {"depth", 24},
        {"hidden_act", "gelu_pytorch_tanh"},
        {"hidden_size", 1024},
        {"in_channels", 3},
        {"initializer_range", 0.02},
        {"intermediate_size", 4096},
        {"model_type", "qwen3_vl"},
        {"num_heads", 16},
        {"num_position_embeddings", 2304},
        {"out_hidden_size", 2560},
        {"patch_size", 16},
        {"spatial_merge_size", 2},
        {"temporal_patch_size", 2}}}};
}

// With the defaults of transformers' class.
json qwen3_5(const json& vision) {
  json config = qwen3_vl_4b();
  config["model_type"] = "qwen3_5";
  config["text_config"] = {{"model_type", "qwen3_5_text"},
                           {"head_dim", 256},
                           {"hidden_act", "silu"},
                           {"hidden_size", 3584},
                           {"intermediate_size", 9728},
                           {"linear_conv_kernel_dim", 4},
                           {"linear_key_head_dim", 128},
                           {"linear_num_key_heads", 16},
                           {"linear_num_value_heads", 32},
                           {"linear_value_head_dim", 128},
                           {"max_position_embeddings", 262144},
                           {"num_attention_heads", 16},
                           {"num_hidden_layers", 4},
                           {"num_key_value_heads", 4},
                           {"rms_norm_eps", 1e-06},
                           {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}}},
                           {"vocab_size", 1000}};
  config["tie_word_embeddings"] = false;
  config["vision_config"] = vision;
  return config;
}

ModelConfig read(const json& config, const ReadOptions& options = {.vision = true}) {
  const test::TemporaryDirectory dir;
  write_text(dir.path() / "config.json", config.dump());
  return load_model_config(dir.path(), options);
}

int64_t tower_parameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const VisionUnitSpecs& unit : vision_unit_specs(config)) {
    for (const ParamSpec& spec : unit.specs) {
      count += spec.numel();
    }
  }
  return count;
}

json changed(json config, const std::string& block, const std::string& key, const json& value) {
  config[block][key] = value;
  return config;
}

void refuses(const json& config, const std::string& message) {
  CHECK_THROWS_WITH(read(config), Catch::Contains(message));
}

// Counted by transformers 5.9 on the meta device.
TEST_CASE("published towers have as many parameters as transformers' classes") {
  CHECK(tower_parameters(read(qwen2_vl_7b())) == 675'759'104);
  CHECK(tower_parameters(read(qwen2_5_vl_7b())) == 676'550'144);
  CHECK(tower_parameters(read(qwen3_vl_4b())) == 415'347'712);
  CHECK(tower_parameters(read(qwen3_5(json::object()))) == 453'650'672);
}

TEST_CASE("fields that a vision_config leaves out have the defaults of transformers' class") {
  const VisionConfig of_class = *read(qwen3_5(json::object())).vision;
  CHECK(of_class == *read(qwen3_5({{"depth", 27},
                                   {"hidden_size", 1152},
                                   {"intermediate_size", 4304},
                                   {"num_heads", 16},
                                   {"num_position_embeddings", 2304},
                                   {"out_hidden_size", 3584},
                                   {"patch_size", 16},
                                   {"spatial_merge_size", 2},
                                   {"temporal_patch_size", 2}}))
                         .vision);
  CHECK(of_class.rope == RopeSections{{11, 11, 10}, true});
  json config = qwen3_vl_4b();
  config["text_config"]["rope_scaling"].erase("mrope_section");
  config["vision_config"].erase("deepstack_visual_indexes");
  config["vision_config"]["depth"] = 27;
  CHECK(read(config).vision->rope == RopeSections{{24, 20, 20}, true});
  CHECK(read(config).vision->deepstack == std::vector<int64_t>{8, 16, 24});
  json qwen2_5 = qwen2_5_vl_7b();
  for (const char* key : {"window_size", "fullatt_block_indexes", "num_heads"}) {
    qwen2_5["vision_config"].erase(key);
  }
  CHECK(*read(qwen2_5).vision == *read(qwen2_5_vl_7b()).vision);
}

TEST_CASE("published fields are read") {
  const VisionConfig c = *read(qwen2_5_vl_7b()).vision;
  CHECK(c.family == VisionFamily::kQwen2_5Vl);
  CHECK(c.window_tokens() == 4);
  CHECK(c.is_windowed(0));
  CHECK_FALSE(c.is_windowed(7));
  CHECK(c.rope == RopeSections{{16, 24, 24}, false});
  CHECK(read(qwen2_vl_7b()).vision->mlp == 5120);
  CHECK(read(qwen3_vl_4b()).vision->deepstack == std::vector<int64_t>{5, 11, 17});
}

TEST_CASE("a tower is read where it is asked for, and only there") {
  for (const json& config : {qwen2_vl_7b(), qwen2_5_vl_7b(), qwen3_vl_4b()}) {
    const ModelConfig text = read(config, {});
    CHECK_FALSE(text.vision);
    CHECK_FALSE(text.on_disk.parts_left_out.empty());
    const ModelConfig all = read(config);
    CHECK(all.on_disk.parts_left_out.empty());
    CHECK(decoder_specs(all).size() > decoder_specs(text).size());
  }
  json text = qwen3_vl_4b()["text_config"];
  text["model_type"] = "qwen3";
  refuses(text, "'model_type' has no vision tower that is read");
  CHECK_NOTHROW(read(text, {}));
}

TEST_CASE("what is written of a tower is read again as it was") {
  for (const json& config : {qwen2_vl_7b(), qwen2_5_vl_7b(), qwen3_vl_4b(),
                             qwen3_5({{"patch_size", 14}, {"dtype", "float32"}})}) {
    const ModelConfig before = read(config);
    const json written = json::parse(model_config_json(before, "bfloat16"));
    const ModelConfig again = read(written);
    CHECK(*again.vision == *before.vision);
    CHECK((decoder_specs(again) == decoder_specs(before)));
    CHECK(written["vision_config"].value("dtype", "bfloat16") == "bfloat16");
    CHECK(written["model_type"] == config["model_type"]);
  }
  ModelConfig made = read(qwen3_vl_4b());
  made.vision->depth = 30;
  CHECK(read(json::parse(model_config_json(made, "float32"))).vision->depth == 30);
  made.on_disk.multimodal_json.clear();
  CHECK_THROWS_AS(model_config_json(made, "float32"), std::invalid_argument);
}

TEST_CASE("fields of a tower that cannot be honoured are refused by name") {
  const std::string vision = "vision_config";
  refuses(changed(qwen3_vl_4b(), vision, "hidden_act", "silu"),
          "'vision_config': 'hidden_act' is 'silu'");
  refuses(changed(qwen3_vl_4b(), vision, "in_channels", 1), "'in_channels' is 1");
  refuses(changed(qwen3_vl_4b(), vision, "out_hidden_size", 2048), "out_hidden_size");
  refuses(changed(qwen3_vl_4b(), vision, "num_heads", 12), "num_heads");
  refuses(changed(qwen3_vl_4b(), vision, "num_position_embeddings", 2000), "square");
  refuses(changed(qwen3_vl_4b(), vision, "deepstack_visual_indexes", {5, 24}), "ascend");
  refuses(changed(qwen3_vl_4b(), vision, "deepstack_visual_indexes", {11, 5}), "ascend");
  refuses(changed(qwen3_vl_4b(), vision, "window_size", 112), "window_size");
  refuses(changed(qwen2_5_vl_7b(), vision, "fullatt_block_indexes", {7, 32}), "ascend");
  refuses(changed(qwen2_5_vl_7b(), vision, "window_size", 20), "window_size");
  refuses(changed(qwen2_5_vl_7b(), vision, "spatial_patch_size", 16), "spatial_patch_size");
  refuses(changed(qwen2_5_vl_7b(), "rope_scaling", "mrope_section", {16, 24, 20}), "mrope_section");
  refuses(changed(qwen2_5_vl_7b(), "rope_scaling", "mrope_section", {16, 48}), "mrope_section");
  refuses(qwen3_5({{"deepstack_visual_indexes", {1}}}), "no deepstack");
  json interleaved = qwen3_vl_4b();
  interleaved["text_config"]["rope_scaling"]["mrope_interleaved"] = false;
  refuses(interleaved, "mrope_interleaved");
  json none = qwen3_vl_4b();
  none.erase(vision);
  refuses(none, "'vision_config' is missing");
  json sections = qwen2_5_vl_7b();
  sections["rope_scaling"].erase("mrope_section");
  sections["rope_scaling"]["type"] = "default";
  refuses(sections, "mrope_section");
}

// A tiny model of Qwen2.5-VL's names.
json tiny_qwen2_5_vl() {
  json config = qwen2_5_vl_7b();
  config.update({{"hidden_size", 16},
                 {"intermediate_size", 24},
                 {"max_position_embeddings", 64},
                 {"num_attention_heads", 2},
                 {"num_hidden_layers", 2},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 19}});
  config["rope_scaling"]["mrope_section"] = {1, 1, 2};
  config["vision_config"].update({{"depth", 2},
                                  {"fullatt_block_indexes", {1}},
                                  {"hidden_size", 8},
                                  {"intermediate_size", 6},
                                  {"num_heads", 2},
                                  {"out_hidden_size", 16},
                                  {"patch_size", 2},
                                  {"spatial_patch_size", 2},
                                  {"window_size", 4}});
  return config;
}

std::vector<std::string> names_in(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  const SafetensorsFile file(dir / "model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    names.push_back(entry.name);
  }
  std::ranges::sort(names);
  return names;
}

TEST_CASE("a model is saved with its tower, and read again with it or without") {
  const ModelConfig config = read(tiny_qwen2_5_vl());
  const Decoder decoder = test::tower_decoder(config, at::kFloat);
  const test::TemporaryDirectory dir;
  save_decoder(decoder, dir.path(), at::kFloat);
  CHECK(std::ranges::count_if(names_in(dir.path()), [](const std::string& name) {
          return name.starts_with("visual.");
        }) == 1 + 2 * 12 + 5);

  const Decoder again = load_decoder(dir.path(), at::kFloat, {.vision = true});
  CHECK_FALSE(again.parameters().tower()->units().front()->flat().requires_grad());
  for (std::size_t u = 0; u < decoder.units().size(); ++u) {
    CHECK(again.units()[u]->flat().equal(decoder.units()[u]->flat().detach()));
  }
  CHECK(check_weight_headers(dir.path(), config).empty());
  CHECK(unused_tensors(dir.path(), config).empty());

  const Decoder text = load_decoder(dir.path(), at::kFloat);
  CHECK(text.parameters().tower() == nullptr);
  CHECK(unused_tensors(dir.path(), text.config()).at("visual.") == 30);
}

TEST_CASE("a tower's tensors are found under transformers' names in memory, and none may lack") {
  const ModelConfig config = read(tiny_qwen2_5_vl());
  const Decoder decoder = test::tower_decoder(config, at::kFloat);
  const test::TemporaryDirectory dir;
  save_decoder(decoder, dir.path(), at::kFloat);
  const auto rewrite = [&](const std::function<bool(std::string & name)>& keeps) {
    std::vector<TensorToWrite> tensors;
    const SafetensorsFile file(dir.path() / "model.safetensors");
    for (std::size_t i = 0; i < file.entries().size(); ++i) {
      std::string name = file.entries()[i].name;
      if (keeps(name)) {
        tensors.push_back({name, file.tensor(i).clone(), at::kFloat});
      }
    }
    write_safetensors(dir.path() / "model.safetensors", std::move(tensors));
  };
  rewrite([](std::string& name) {
    name = name.starts_with("visual.") ? "model." + name : name;
    return true;
  });
  const Decoder again = load_decoder(dir.path(), at::kFloat, {.vision = true});
  CHECK(again.units().back()->flat().equal(decoder.units().back()->flat().detach()));

  rewrite([](std::string& name) { return !name.ends_with("merger.mlp.2.bias"); });
  CHECK_THROWS_WITH(load_decoder(dir.path(), at::kFloat, {.vision = true}),
                    Catch::Contains("visual.merger.mlp.2.bias"));
  CHECK_NOTHROW(load_decoder(dir.path(), at::kFloat));
}

}  // namespace
}  // namespace ringside::engine
