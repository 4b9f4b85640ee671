// Guards PEFT directories: a field that changes the result and is silently ignored, and factors
// that are missing, doubled, of another shape or never read. Against PEFT itself:
// tests/oracle/lora.py.
#include "engine/io/adapter_directory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "engine/io/hf_directory.h"
#include "engine/io/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using test::TemporaryDirectory;

const AdapterOptions kOptions{3, 6.0, {"q_proj", "down_proj"}};

// Of the whole tiny model.
Adapters tiny_adapters(const AdapterOptions& options, at::ScalarType dtype) {
  const ModelConfig config = test::tiny_config();
  return {config, whole_stage(config), options, dtype};
}

Adapters drawn_adapters(const AdapterOptions& options = kOptions,
                        at::ScalarType dtype = at::kFloat) {
  Adapters adapters = tiny_adapters(options, dtype);
  at::manual_seed(3);
  const at::NoGradGuard no_grad;
  adapters.unit().flat().copy_(at::randn(adapters.unit().flat().sizes()));
  return adapters;
}

// Saves adapters, lets the functions edit config and tensors, and loads.
template <class ChangeConfig, class ChangeTensors>
void load_changed_adapter(const ChangeConfig& change_config, const ChangeTensors& change_tensors) {
  const TemporaryDirectory dir;
  save_adapters(drawn_adapters(), dir.path(), "base");
  const fs::path config_file = dir.path() / "adapter_config.json";
  auto config = nlohmann::json::parse(test::read_file(config_file));
  change_config(config);
  test::write_file(config_file, config.dump());
  const fs::path weights = dir.path() / "adapter_model.safetensors";
  std::vector<TensorToWrite> tensors;
  {
    const SafetensorsFile file(weights);
    for (std::size_t i = 0; i < file.entries().size(); ++i) {
      tensors.push_back({file.entries()[i].name, file.tensor(i).clone(), file.entries()[i].dtype});
    }
  }
  change_tensors(tensors);
  write_safetensors(weights, tensors);
  Adapters adapters = tiny_adapters(kOptions, at::kFloat);
  load_adapters(dir.path(), adapters);
}

void load_with_config(const char* key, const nlohmann::json& value) {
  load_changed_adapter([&](nlohmann::json& config) { config[key] = value; }, [](auto&) {});
}

template <class ChangeTensors>
void load_with_tensors(const ChangeTensors& change) {
  load_changed_adapter([](nlohmann::json&) {}, change);
}

TEST_CASE("saved adapters load to the same bits, in fp32 and fp64") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const TemporaryDirectory dir;
    const Adapters saved = drawn_adapters(kOptions, dtype);
    save_adapters(saved, dir.path(), "base");
    CHECK(read_adapter_options(dir.path()) == kOptions);
    Adapters loaded = tiny_adapters(kOptions, dtype);
    load_adapters(dir.path(), loaded);
    CHECK(at::equal(loaded.unit().flat(), saved.unit().flat()));
  }
  const auto config = nlohmann::json::parse(adapter_config_json(kOptions, "base"));
  CHECK(config["lora_alpha"].dump() == "6");  // whole numbers stay whole, as servers expect
  CHECK(nlohmann::json::parse(adapter_config_json({3, 0.5, {"q_proj"}}, ""))["lora_alpha"] == 0.5);
}

TEST_CASE("fields that change the result are refused by name unless at their defaults") {
  const nlohmann::json something = {{"q_proj", 4}};
  const std::pair<const char*, nlohmann::json> fields[] = {
      {"use_dora", true},
      {"use_rslora", true},
      {"rank_pattern", something},
      {"alpha_pattern", something},
      {"modules_to_save", {"lm_head"}},
      {"layers_to_transform", {0}},
      {"layer_replication", {{0, 1}}},
      {"lora_bias", true},
      {"trainable_token_indices", {1}},
      {"target_parameters", {"experts"}},
      {"alora_invocation_tokens", {1}},
      {"use_qalora", true},
      {"use_bdlora", something},
      {"megatron_config", something},
      {"fan_in_fan_out", true},
      {"ensure_weight_tying", true},
      {"loftq_config", something},
      {"a_field_of_the_future", 1},
      {"bias", "all"},
      {"peft_type", "IA3"},
      {"init_lora_weights", "pissa"},
      {"r", 0},
      {"lora_alpha", -1},
  };
  for (const auto& [key, value] : fields) {
    INFO(key);
    CHECK_THROWS_WITH(load_with_config(key, value),
                      Contains("adapter_config.json") && Contains(std::string("'") + key + "'"));
  }
  for (const char* key : {"use_dora", "layers_to_transform", "a_field_of_the_future"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(nullptr), nlohmann::json(false), nlohmann::json::array()}) {
      INFO(key << " = " << value);
      CHECK_NOTHROW(load_with_config(key, value));
    }
  }
  CHECK_NOTHROW(load_with_config("lora_dropout", 0.1));
  CHECK_THROWS_WITH(
      load_changed_adapter([](nlohmann::json& config) { config.erase("r"); }, [](auto&) {}),
      Contains("'r' is missing"));
  CHECK_THROWS_WITH(load_with_config("r", 4),
                    Contains("holds adapters of rank 4") && Contains("asks for rank 3"));
}

TEST_CASE("factors of experts are PEFT's target_parameters") {
  const std::vector<std::string> all{"q_proj", "experts.gate_up_proj", "experts.down_proj"};
  const ModelConfig config = test::stacked_config();
  for (const std::vector<std::string>& targets :
       {all, {"experts.gate_up_proj"}, {"o_proj", "experts.down_proj"}}) {
    CAPTURE(targets);
    const TemporaryDirectory dir;
    const AdapterOptions options{3, 6.0, targets};
    Adapters saved(config, whole_stage(config), options, at::kFloat);
    saved.unit().flat().detach().normal_();
    save_adapters(saved, dir.path(), "base");
    CHECK(read_adapter_options(dir.path()) == options);
    Adapters loaded(config, whole_stage(config), options, at::kFloat);
    load_adapters(dir.path(), loaded);
    CHECK(at::equal(loaded.unit().flat(), saved.unit().flat()));
    const fs::path file = dir.path() / "adapter_config.json";
    auto json = nlohmann::json::parse(test::read_file(file));
    CHECK(json["target_modules"].size() + json["target_parameters"].size() == targets.size());
    const auto refused = [&](const nlohmann::json& parameters) {
      json["target_parameters"] = parameters;
      test::write_file(file, json.dump());
      CHECK_THROWS_WITH(read_adapter_options(dir.path()),
                        Contains("target_parameters") || Contains("no factor"));
    };
    // Short names mean the same to PEFT.
    if (targets.size() == 3) {
      json["target_parameters"] = {"down_proj", "mlp.experts.gate_up_proj"};
      test::write_file(file, json.dump());
      CHECK(read_adapter_options(dir.path()) == options);
    } else {
      refused({"experts.down_proj", "experts.gate_up_proj"});
    }
    refused(nlohmann::json::array({"mlp.experts"}));
    refused(nlohmann::json::array({"gate.weight"}));
    refused("experts.down_proj");
    refused(nullptr);
  }
}

TEST_CASE("factors that do not fit the model are refused by name") {
  CHECK_THROWS_WITH(load_with_tensors([](auto& tensors) { tensors.pop_back(); }),
                    Contains("is in none of the weight files"));
  CHECK_THROWS_WITH(load_with_tensors([](auto& tensors) {
                      tensors.back().tensor = at::zeros({2, 2});
                    }),
                    Contains("has shape [2, 2]"));
  CHECK_THROWS_WITH(load_with_tensors([](auto& tensors) { tensors[0].tensor.fill_(NAN); }),
                    Contains("not finite"));
  const auto add = [](const std::string& name) {
    load_with_tensors([&](auto& tensors) {
      tensors.push_back({name, at::zeros({3, 16}), at::kFloat});
    });
  };
  CHECK_THROWS_WITH(add("base_model.model.lm_head.lora_A.weight"),
                    Contains("lm_head") && Contains("expected lora_A and lora_B of q_proj"));
  CHECK_THROWS_WITH(add("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"),
                    Contains("layers.7") && Contains("belongs to no adapter"));
  // Another projection than asked for changes the options.
  CHECK_THROWS_WITH(add("base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"),
                    Contains("projections q_proj, v_proj, down_proj"));
  const TemporaryDirectory dir;
  test::write_file(dir.path() / "adapter_model.bin", "");
  CHECK_THROWS_WITH(read_adapter_options(dir.path()), Contains("only adapter_model.bin"));
}

TEST_CASE("a model with adapters is saved with the adapters merged") {
  const TemporaryDirectory dir;
  Decoder decoder = test::random_decoder(test::tiny_config(), at::kFloat, 5, 0.3);
  const at::Tensor base = decoder.units()[1]->view(0).clone();
  Adapters& adapters = decoder.add_adapters(kOptions);
  adapters.unit().flat().detach().copy_(drawn_adapters().unit().flat());
  save_decoder(decoder, dir.path(), at::kFloat);
  const Decoder merged = load_decoder(dir.path(), at::kFloat);
  const at::Tensor added = adapters.unit().view(1).mm(adapters.unit().view(0)) * 2.0;
  REQUIRE(adapters.unit().specs()[1].name.ends_with("q_proj.lora_B.weight"));
  CHECK((merged.units()[1]->view(0) - base - added).abs().max().item<double>() < 1e-5);
  CHECK(added.abs().max().item<double>() > 0.1);
  CHECK(at::equal(merged.units()[0]->flat().detach(), decoder.units()[0]->flat()));
}

}  // namespace
}  // namespace ringside::engine
