// Guards the layer that predicts a further token over ranks: a next id taken from the wrong shard
// or document, an entry that is lost or counted twice, a gradient that leaks into the model. The
// formulas: tests/engine/further_parity.py.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compare_training.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;

constexpr int64_t kFurtherSteps = 2;

engine::ModelConfig deepseek_model() {
  engine::ModelConfig config = test::latent_config();
  config.on_disk.further.layers = 1;
  config.on_disk.predicts_further = true;
  return config;
}

engine::ModelConfig qwen_model() {
  engine::ModelConfig config = test::hybrid_config(/*experts=*/false);
  config.on_disk.further = {1, "mtp."};
  config.on_disk.predicts_further = true;
  return config;
}

// Gradients of one rank by the names of units; further: nullopt: the layer is not trained.
std::map<std::string, at::Tensor> gradients(
    const std::optional<engine::FurtherTokensOptions>& further) {
  engine::ModelConfig config = deepseek_model();
  config.on_disk.predicts_further = further.has_value();
  std::map<std::string, at::Tensor> found;
  engine::ModelRunner runner(
      std::make_unique<engine::LanguageModel>(std::make_unique<engine::Decoder>(
          test::random_decoder(config, at::kDouble, /*seed=*/3, /*std=*/0.3))),
      sp::single_rank_groups(), engine::AdamWOptions{});
  std::vector<sp::Document> documents = test::uneven_documents();
  std::ranges::for_each(documents, sp::add_next_ids);
  if (further) {
    runner.predict_further_tokens(*further);
  }
  const auto batches =
      sp::collate(documents, sp::Mesh({1, 1, 1}, 0), engine::collator_options(config, 500, {}));
  std::vector<engine::ModelInput> inputs;
  for (const sp::MicroBatch& batch : batches) {
    inputs.push_back({&batch, at::ones({batch.num_entries()}, at::kDouble)});
  }
  runner.train(inputs, test::entropy_loss);
  for (const engine::ParamUnit* unit : runner.model().units()) {
    found[unit->name()] = unit->grad().clone();
  }
  return found;
}

}  // namespace

TEST_CASE("the layer that predicts a further token trains alike on one rank and on several") {
  const bool detach = GENERATE(true, false);
  for (const engine::ModelConfig& model : {deepseek_model(), qwen_model()}) {
    const bool experts = model.experts.count > 0;
    const auto train = [&](Layout layout) {
      layout.further = {0.7, detach};
      return test::train_in_double(layout, model, kFurtherSteps);
    };
    const test::ShardOutcome expected = train({});
    std::vector<Layout> layouts{
        {.replicate = 2, .mode = rl::CpFsdpMode::kNone},
        {.shard = 2, .stage = 3},
        {.shard = 2, .ring = 2, .stage = 3, .activations = {engine::Recompute::kFull}},
        {.ring = 2, .placement = sp::Placement::kZigzag},
        {.ring = 3, .ring_impl = sp::RingImpl::kAllGather},
        {.ulysses = 2},
        {.ring = 2, .ulysses = 2, .stage = 2, .shared_prefix = false},
        {.shared_prefix = false}};
    if (experts) {
      layouts.push_back({.ulysses = 2, .mode = rl::CpFsdpMode::kNone, .expert = 2});
      layouts.push_back({.shard = 4, .stage = 3, .expert = 2});
    }
    for (const Layout& layout : layouts) {
      CAPTURE(layout.name(), model.model_type, detach);
      const test::ShardOutcome found = train(layout);
      test::check_equal_training(found, expected, 1e-10);
      CHECK(found.sent_bytes == found.predicted_bytes);
      REQUIRE(found.further_losses.size() == expected.further_losses.size());
      for (std::size_t step = 0; step < expected.further_losses.size(); ++step) {
        CHECK(found.further_losses[step] == Approx(expected.further_losses[step]).epsilon(1e-10));
      }
    }
    CHECK(expected.further_losses.back() < expected.further_losses.front());
  }
}

TEST_CASE("a detached loss of further tokens leaves the gradients of the model to the bit") {
  const auto without = gradients(std::nullopt), detached = gradients({{0.7, true}}),
             shared = gradients({{0.7, false}});
  for (const auto& [name, gradient] : without) {
    if (name == "router_corrections") {
      continue;  // constants, of one layer more
    }
    CAPTURE(name);
    CHECK(detached.at(name).equal(gradient));
    CHECK_FALSE(shared.at(name).equal(gradient));
  }
  for (const char* name : {"further", "further.layer", "further.layer.experts", "further.norm"}) {
    CAPTURE(name);
    CHECK(detached.at(name).abs().max().item<double>() > 0.0);
  }
}

TEST_CASE("a model without a layer that predicts further tokens does not train one") {
  engine::ModelConfig config = deepseek_model();
  config.on_disk.predicts_further = false;
  engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(
                                 std::make_unique<engine::Decoder>(config, at::kDouble)),
                             sp::single_rank_groups(), engine::AdamWOptions{});
  CHECK_THROWS_WITH(runner.predict_further_tokens({1.0}),
                    Catch::Contains("no layer that predicts further tokens"));
}
