// Guards: sharding that reads a gathered buffer before it is there, frees it while it is read, or
// keeps more on the device than a shard.
#include <cmath>
#include <map>

#include "tests/standin/sharded_outcome.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_tower.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;

Outcome sharded_outcome(const Layout& layout, at::ScalarType dtype, bool on_standin) {
  engine::ModelConfig model = test::tiny_config();
  if (layout.expert > 1) {
    model.experts = {.count = 5, .per_token = 2, .intermediate_size = 12};
  }
  return test::train_sharded_on(on_standin, layout, model, dtype, 3);
}

void check_bits(const Outcome& found, const Outcome& expected) {
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  REQUIRE(found.weights.size() == expected.weights.size());
  for (std::size_t u = 0; u < found.weights.size(); ++u) {
    CHECK(at::equal(found.weights[u], expected.weights[u]));
  }
}

}  // namespace

TEST_CASE("a sharded model on the stand-in has the CPU's bits") {
  using Mode = rl::CpFsdpMode;
  using Offload = rl::OptimizerOffload;
  const std::vector<Layout> layouts{
      {.shard = 2},
      {.shard = 3, .activations = {engine::Recompute::kFull, true}},
      {.shard = 4, .stage = 2},
      {.ulysses = 2},
      {.ring = 2, .activations = {engine::Recompute::kSelective, true, 3}},
      {.ring = 2, .ulysses = 2, .mode = Mode::kUlyssesOnly},
      {.shard = 2, .ring = 2, .mode = Mode::kNone, .stage = 1},
      {.replicate = 2, .shard = 2, .stage = 1, .activations = {engine::Recompute::kSelective}},
      {.replicate = 2, .shard = 2, .stage = 3},
      {.offload = Offload::kMoments},
      {.offload = Offload::kFull},
      {.shard = 2, .activations = {engine::Recompute::kFull}, .offload = Offload::kMoments},
      {.shard = 2, .stage = 1, .offload = Offload::kFull},
      {.replicate = 2, .shard = 2, .offload = Offload::kFull, .offload_parameters = true},
      {.shard = 2, .ulysses = 2, .activations = {engine::Recompute::kFull, true}, .expert = 2},
  };
  for (const Layout& layout : layouts) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(layout.name(), dtype);
      const Outcome expected = sharded_outcome(layout, dtype, /*on_standin=*/false);
      const standin::Scope scope;
      const Outcome found = sharded_outcome(layout, dtype, /*on_standin=*/true);
      CHECK(scope.text() == "");
      check_bits(found, expected);
    }
  }
}

TEST_CASE("a model with images on the stand-in has the CPU's bits") {
  using Vision = engine::VisionTraining;
  const std::vector<Layout> layouts{
      {},
      {.ring = 2, .vision = Vision::kNothing},
      {.ulysses = 2, .activations = {engine::Recompute::kFull, true}, .async_ulysses = false},
      {.shard = 2, .ulysses = 2, .vision = Vision::kMergers},
      {.shard = 3, .micro_batch_tokens = 20},
      {.shard = 2, .vision = Vision::kNothing},
      {.ring = 2, .tensor = 2},
  };
  for (Layout layout : layouts) {
    layout.images = true;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(layout.name(), dtype);
      const auto train = [&](bool on_standin) {
        return test::train_sharded_on(on_standin, layout,
                                      test::tower_config(engine::VisionFamily::kQwen3Vl), dtype, 3);
      };
      const Outcome expected = train(/*on_standin=*/false);
      const standin::Scope scope;
      const Outcome found = train(/*on_standin=*/true);
      CHECK(scope.text() == "");
      check_bits(found, expected);
    }
  }
}

TEST_CASE("between steps a rank of a shard of W holds 16 bytes of a W-th of the parameters") {
  engine::ModelConfig model = test::tiny_config();
  model.hidden_size = 96;
  model.intermediate_size = 256;
  model.vocab_size = 512;
  int64_t parameters = 0;
  for (const engine::ParamSpec& spec : engine::decoder_specs(model)) {
    parameters += spec.numel();
  }
  using Offload = rl::OptimizerOffload;
  const std::map<Offload, double> bytes_on_device{
      {Offload::kNone, 16.0}, {Offload::kMoments, 8.0}, {Offload::kFull, 0.0}};
  for (const int64_t shard : {1, 2, 4}) {
    for (const auto& [offload, per_parameter] : bytes_on_device) {
      const Layout layout{.shard = shard, .stage = shard == 4 ? 1 : 3, .offload = offload};
      const auto parallel = layout.config();
      int64_t bytes = 0;
      standin::Scope scope;
      standin::run_standin_ranks_in_memory(
          rl::mesh_shape(parallel),
          [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device) {
            rl::Config config;
            config.parallel = parallel;
            config.model.dtype = rl::DType::kBFloat16;
            config.optimizer.offload = layout.offload;
            auto decoder =
                std::make_unique<engine::Decoder>(model, rl::compute_context(config, groups));
            decoder->init_random(3, 0.1);
            engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)),
                                       groups, engine::AdamWOptions{});
            const sp::HeadShape heads{model.num_attention_heads, model.num_key_value_heads,
                                      model.head_dim};
            const rl::LocalBatch local{sp::collate(test::uneven_documents(), mesh, {heads, 24, {}}),
                                       0};
            const auto inputs = rl::model_inputs(local, {}, at::kFloat);
            runner.train(inputs, test::entropy_loss);
            runner.step(1e-2, 1.0);
            groups.control(sp::axes::kLoss)->all_gather(at::zeros({1}), "all ranks are here");
            if (mesh.rank() == 0) {
              bytes = scope.current_bytes(0);
            }
            groups.control(sp::axes::kLoss)->all_gather(at::zeros({1}), "measured");
          },
          std::chrono::seconds(20), rl::sharding_axes(parallel));
      const double share = static_cast<double>(parameters) / static_cast<double>(shard);
      CAPTURE(layout.name(), parameters);
      CHECK(std::abs(static_cast<double>(bytes) - per_parameter * share) < 0.05 * 16.0 * share);
    }
  }
}
