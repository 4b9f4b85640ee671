// Guards adapters of experts on several ranks: factors of another rank's experts, a gradient that
// is summed over too few or too many ranks, and a merge into the weights of other experts.
#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/models/adapters.h"
#include "tests/support/catch.h"
#include "tests/support/compare_training.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Names = std::vector<std::string>;

constexpr int64_t kExpertSteps = 4;

// Qwen3-MoE: an MLP in the first layer, experts in the others.
engine::ModelConfig qwen3_moe() {
  engine::ModelConfig config = test::tiny_config();
  config.num_hidden_layers = 3;
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{},
                   {.channel_mixer = engine::ChannelMixerKind::kExperts},
                   {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

test::ShardOutcome train_adapters(Layout layout, const Names& targets,
                                  const engine::ModelConfig& model) {
  layout.lora_rank = 3;
  layout.lora_targets = targets;
  return test::train_in_double(layout, model, kExpertSteps);
}

void check_layouts(const std::vector<Layout>& layouts, const Names& targets,
                   const engine::ModelConfig& model) {
  const test::ShardOutcome expected = train_adapters({}, targets, model);
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name(), targets, model.model_type);
    const test::ShardOutcome found = train_adapters(layout, targets, model);
    test::check_equal_training(found, expected, 1e-10);
    CHECK(found.sent_bytes == found.predicted_bytes);
  }
}

}  // namespace

TEST_CASE("adapters of experts train alike on one rank and on shards, expert and tensor ranks") {
  const Layout recomputed{.activations = {engine::Recompute::kFull}, .expert = 2, .tensor = 2};
  check_layouts({{.shard = 2, .stage = 3},
                 {.shard = 2, .stage = 3, .expert = 2},
                 {.replicate = 2, .shard = 2, .expert = 2},
                 {.tensor = 2},
                 recomputed,
                 {.shard = 2, .expert = 4, .tensor = 2},
                 {.ulysses = 2, .expert = 2},
                 {.ring = 2, .mode = rl::CpFsdpMode::kNone},
                 // Keys and values of several ranks are a weight of their own there.
                 {.expert = 3, .tensor = 3},
                 {.shard = 2, .expert = 2, .pipeline = 2}},
                {"q_proj", "experts.gate_up_proj", "experts.down_proj"}, qwen3_moe());
}

TEST_CASE("adapters of one projection of experts, beside a shared MLP and stacked") {
  check_layouts({{.shard = 2, .expert = 2, .tensor = 2}, {.pipeline = 2}}, {"experts.down_proj"},
                test::latent_config());
  // Experts that are one tensor are not divided over ranks.
  check_layouts({{.shard = 2, .tensor = 2}, {.ulysses = 2}},
                {"o_proj", "experts.gate_up_proj", "experts.down_proj"}, test::stacked_config());
}

TEST_CASE("factors of experts have PEFT's names and shapes") {
  const auto named = [](const Names& targets) {
    Names names;
    for (const engine::ParamSpec& spec :
         engine::Adapters::factors(qwen3_moe(), {2, 4.0, targets})) {
      std::string text = spec.name.substr(spec.name.find("layers."));
      for (const int64_t size : spec.shape) {
        text += " " + std::to_string(size);
      }
      names.push_back(text);
    }
    return names;
  };
  CHECK(named({"experts.gate_up_proj", "experts.down_proj"}) ==
        Names{"layers.1.mlp.experts.base_layer.lora_A.weight 10 16",
              "layers.1.mlp.experts.base_layer.lora_B.weight 24 10",
              "layers.1.mlp.experts.lora_A.weight 10 12",
              "layers.1.mlp.experts.lora_B.weight 16 10",
              "layers.2.mlp.experts.base_layer.lora_A.weight 10 16",
              "layers.2.mlp.experts.base_layer.lora_B.weight 24 10",
              "layers.2.mlp.experts.lora_A.weight 10 12",
              "layers.2.mlp.experts.lora_B.weight 16 10"});
  CHECK(named({"experts.gate_up_proj"}).front() == "layers.1.mlp.experts.lora_A.weight 10 16");
  CHECK_THROWS_WITH(
      engine::check_adapter_options(test::tiny_config(), {2, 4.0, {"experts.down_proj"}}),
      Catch::Contains("the model has only 0"));
  CHECK_THROWS_WITH(engine::check_adapter_options(qwen3_moe(), {2, 4.0, {"down_proj"}}),
                    Catch::Contains("experts.down_proj"));
}
