// Guards adapters of models whose layers have different projections, such as gated delta nets
// beside attention: a factor of another layer, a part of a projection that a tensor-parallel rank
// adapts at the wrong rows, and predicted traffic of layers below the first adapter.
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

constexpr int64_t kAdapterSteps = 4;

test::ShardOutcome train(Layout layout, const Names& targets, const engine::ModelConfig& model) {
  layout.lora_rank = 3;
  layout.lora_targets = targets;
  return test::train_in_double(layout, model, kAdapterSteps);
}

const std::vector<std::pair<bool, Names>>& cases() {
  static const std::vector<std::pair<bool, Names>> all{
      // Qwen3.5: attention in the last of three layers, delta nets and MLPs in the others.
      {false,
       {"q_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "out_proj"}},
      // Qwen3-Next with experts.
      {true, {"o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"}},
      // The first adapter is in the last layer.
      {false, {"k_proj", "v_proj"}}};
  return all;
}

}  // namespace

TEST_CASE("adapters of delta nets and attention train alike on one rank and on several") {
  for (const auto& [experts, targets] : cases()) {
    const engine::ModelConfig model = test::hybrid_config(experts);
    const test::ShardOutcome expected = train({}, targets, model);
    for (const Layout& layout :
         std::vector<Layout>{{.tensor = 2},
                             {.tensor = 3},
                             {.activations = {engine::Recompute::kFull}, .tensor = 2},
                             {.ulysses = 2},
                             {.ring = 2, .mode = rl::CpFsdpMode::kNone},
                             {.shard = 2, .stage = 3},
                             {.pipeline = 3}}) {
      CAPTURE(layout.name(), targets);
      const test::ShardOutcome found = train(layout, targets, model);
      test::check_equal_training(found, expected, 1e-10);
      CHECK(found.sent_bytes == found.predicted_bytes);
    }
  }
}

TEST_CASE("factors are those of the projections that a layer has, by PEFT's names") {
  const engine::ModelConfig model = test::hybrid_config(false);
  Names names;
  for (const engine::ParamSpec& spec :
       engine::Adapters::factors(model, {2, 4.0, {"v_proj", "out_proj"}})) {
    names.push_back(spec.name);
  }
  const std::string before = "base_model.model.model.layers.";
  CHECK(names == Names{before + "0.linear_attn.out_proj.lora_A.weight",
                       before + "0.linear_attn.out_proj.lora_B.weight",
                       before + "1.linear_attn.out_proj.lora_A.weight",
                       before + "1.linear_attn.out_proj.lora_B.weight",
                       before + "2.self_attn.v_proj.lora_A.weight",
                       before + "2.self_attn.v_proj.lora_B.weight"});
  CHECK_THROWS_WITH(engine::check_adapter_options(model, {2, 4.0, {"in_proj_qkvz"}}),
                    Catch::Contains("the model has only 0") && Catch::Contains("in_proj_qkv"));
  CHECK_THROWS_WITH(engine::check_adapter_options(test::hybrid_config(true), {2, 4.0, {"up_proj"}}),
                    Catch::Contains("experts have none"));
}
