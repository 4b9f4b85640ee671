// Guards: a pass with replayed routes that waits for row counts which were known before it, sends
// them for every layer, or computes something else.
#include <algorithm>
#include <map>

#include "tests/support/catch.h"
#include "tests/support/sharded_training.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

// Three layers, of which two have experts.
engine::ModelConfig model_with_experts() {
  engine::ModelConfig config = test::tiny_config();
  config.num_hidden_layers = 3;
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{.channel_mixer = engine::ChannelMixerKind::kExperts},
                   {},
                   {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

struct Pass {
  int64_t host_syncs = 0;
  int64_t count_bytes = 0;  // of row counts, that rank 0 sent
  std::vector<at::Tensor> gradients;
  engine::ExpertLoad rows;
};

// What training passes of rank 0 cost: with its routers' choice, and with the same routes replayed.
struct Passes {
  Pass chosen, replayed;
  int64_t micro_batches = 0;
};

Passes measure(const test::ShardLayout& layout) {
  Passes passes;
  standin::Scope scope;
  const rl::ParallelConfig parallel = layout.config();
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device) {
    rl::Config config;
    config.parallel = parallel;
    const engine::ModelConfig model = model_with_experts();
    auto decoder = std::make_unique<engine::Decoder>(model, rl::compute_context(config, groups));
    decoder->init_random(3, 0.3);
    decoder->set_activation_options(layout.activations);
    const auto* experts = decoder->context().experts.get();
    engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)), groups,
                               engine::AdamWOptions{});
    const rl::LocalBatch local{
        sp::collate(test::uneven_documents(), mesh, engine::collator_options(model, 24, {})), 0};
    auto inputs = rl::model_inputs(local, {}, at::kFloat);
    const auto barrier = [&](const char* what) {
      groups.control(sp::axes::kLoss)->all_gather(at::zeros({1}), what);
    };
    const auto train = [&](Pass& pass) {
      const auto sent = [&] {
        return experts != nullptr ? experts->ranks->sent_bytes().contains("expert_counts")
                                        ? experts->ranks->sent_bytes().at("expert_counts")
                                        : 0
                                  : 0;
      };
      const int64_t before = sent();
      barrier("all ranks are here");
      if (mesh.rank() == 0) {
        scope.reset_counts();
      }
      barrier("counts begin");
      const engine::SequenceWork work = runner.train(inputs, test::entropy_loss);
      if (mesh.rank() == 0) {
        pass.host_syncs = standin::Counts::sum(scope.counts(0).host_syncs);
        pass.count_bytes = sent() - before;
        pass.rows = work.expert_rows;
        for (const engine::ParamUnit* unit : runner.model().units()) {
          pass.gradients.push_back(unit->grad().cpu().clone());
        }
      }
      barrier("counts end");
    };
    train(passes.chosen);
    std::vector<at::Tensor> routes(inputs.size());
    for (engine::ModelInput& input : inputs) {
      input.records_routes = true;
    }
    runner.evaluate(inputs, [&](std::size_t i, const engine::HeadOutput& output) {
      routes[i] = output.routes_sLK.cpu();
    });
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].records_routes = false;
      inputs[i].routes_sLK = routes[i];
    }
    train(passes.replayed);
    if (mesh.rank() == 0) {
      passes.micro_batches = static_cast<int64_t>(inputs.size());
    }
  };
  standin::run_standin_ranks_in_memory(rl::mesh_shape(parallel), body, std::chrono::seconds(20),
                                       rl::sharding_axes(parallel));
  CHECK(scope.text() == "");
  return passes;
}

}  // namespace

TEST_CASE("a pass with replayed routes waits for no row counts, and computes the same bits") {
  using engine::Recompute;
  for (const int64_t ranks : {1, 2}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      CAPTURE(ranks, static_cast<int>(recompute));
      const Passes passes =
          measure({.ulysses = ranks, .activations = {recompute}, .expert = ranks});
      REQUIRE(passes.micro_batches > 2);
      const int64_t runs = recompute == Recompute::kNone ? 1 : 2;
      CHECK(passes.chosen.host_syncs == 2 * passes.micro_batches * runs);
      CHECK(passes.replayed.host_syncs == (ranks == 1 ? 0 : 1));
      // 2 or 3 of 5 counts of each layer go to the other rank, in one exchange or in one a layer.
      CHECK(passes.replayed.count_bytes == passes.chosen.count_bytes);
      CHECK(passes.replayed.rows == passes.chosen.rows);
      REQUIRE(passes.replayed.gradients.size() == passes.chosen.gradients.size());
      for (std::size_t u = 0; u < passes.chosen.gradients.size(); ++u) {
        CHECK(passes.replayed.gradients[u].equal(passes.chosen.gradients[u]));
      }
    }
  }
}
