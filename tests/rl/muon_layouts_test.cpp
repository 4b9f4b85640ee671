// Guards Muon over ranks: a direction made of a part of a matrix, a matrix that no rank or two
// different ranks update, an expert made orthogonal together with others; and that ranks that hold
// the same elements share the work.
#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compare_training.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;

constexpr int64_t kMuonSteps = 5;

// Experts in one layer, six query heads for three of keys and values.
engine::ModelConfig uneven_experts() {
  engine::ModelConfig config = test::tiny_config();
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.attention.qkv_bias = true;
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{}, {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

Layout with_muon(Layout layout) {
  layout.muon.emplace();
  return layout;
}

test::ShardOutcome train(const Layout& layout, const engine::ModelConfig& model) {
  return test::train_in_double(with_muon(layout), model, kMuonSteps);
}

}  // namespace

TEST_CASE("Muon trains alike on one rank and on several, however they divide the matrices") {
  using Offload = rl::OptimizerOffload;
  const engine::ModelConfig model = uneven_experts();
  const test::ShardOutcome expected = train({}, model);
  for (const Layout& layout : std::vector<Layout>{
           {.replicate = 2, .mode = rl::CpFsdpMode::kNone},
           {.shard = 2, .stage = 1},
           {.shard = 2, .stage = 2},
           {.replicate = 2, .shard = 3, .stage = 3},
           {.shard = 2, .stage = 3, .offload = Offload::kFull, .offload_parameters = true},
           {.shard = 2, .stage = 2, .offload = Offload::kMoments},
           {.tensor = 2},
           {.replicate = 2, .tensor = 4},
           {.shard = 2, .stage = 3, .tensor = 2},
           {.ulysses = 2, .mode = rl::CpFsdpMode::kNone, .expert = 2},
           {.shard = 4, .stage = 3, .expert = 2},
           {.pipeline = 2},
           {.shard = 2, .pipeline = 2}}) {
    CAPTURE(layout.name());
    test::check_equal_training(train(layout, model), expected, 1e-10);
  }
}

TEST_CASE("Muon trains experts in one tensor and delta nets alike on several ranks") {
  for (const engine::ModelConfig& model : {test::stacked_config(), test::hybrid_config(true)}) {
    const test::ShardOutcome expected = train({}, model);
    for (const Layout& layout :
         std::vector<Layout>{{.shard = 3, .stage = 3}, {.replicate = 2, .tensor = 2}}) {
      CAPTURE(layout.name());
      test::check_equal_training(train(layout, model), expected, 1e-10);
    }
  }
}

TEST_CASE("a gather of directions sends a rank's part of each layer once a step") {
  const engine::ModelConfig model = test::tiny_config();
  const Layout layout{.shard = 2, .stage = 1};
  const auto sent = [](const test::ShardOutcome& outcome) { return outcome.sent.at("parameters"); };
  int64_t elements = 0;
  for (const engine::UnitSpecs& unit : engine::unit_specs(model)) {
    if (unit.role == engine::UnitRole::kLayer) {
      elements += (engine::UnitLayout(unit.name, unit.specs).numel() + 1) / 2;
    }
  }
  CHECK(sent(train(layout, model)) - sent(test::train_in_double(layout, model, kMuonSteps)) ==
        kMuonSteps * elements * static_cast<int64_t>(sizeof(double)));
}
