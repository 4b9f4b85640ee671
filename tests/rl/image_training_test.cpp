// Guards: a model with a vision tower that trains differently where its tokens, its images or its
// weights are divided over ranks: rows on the wrong token, gradients of the tower that are lost or
// counted twice, ranks or micro-batches without images that wait for ever, a constant tower whose
// kept rows are another image's. Oracle: one process, fp64.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/compare_training.h"
#include "tests/support/local_attention.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/tiny_tower.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;
using engine::VisionFamily;
using engine::VisionTraining;

constexpr int64_t kSteps = 5;
constexpr double kTolerance = 1e-10;

Outcome train(Layout layout, const engine::ModelConfig& model) {
  layout.images = true;
  return test::train_in_double(layout, model, kSteps);
}

engine::ModelConfig with_tower(engine::ModelConfig config, VisionFamily family) {
  config.vision = test::tower_config(family).vision;
  return config;
}

engine::ModelConfig with_experts() {
  engine::ModelConfig config = test::tower_config(VisionFamily::kQwen3Vl);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks = {{}, {.channel_mixer = engine::ChannelMixerKind::kExperts}};
  return config;
}

// Qwen3.5: delta nets, RoPE of half of each head, a tower without deepstack.
engine::ModelConfig hybrid() {
  engine::ModelConfig config = with_tower(test::hybrid_config(false), VisionFamily::kQwen3Vl);
  config.vision->deepstack = {};
  config.vision->rope = {{1, 1, 0}, true};
  return config;
}

void check_layouts(const engine::ModelConfig& model, const std::vector<Layout>& layouts) {
  Layout alone;
  alone.vision = layouts.front().vision;
  alone.lora_rank = layouts.front().lora_rank;
  alone.micro_batch_tokens = layouts.front().micro_batch_tokens;
  const Outcome expected = train(alone, model);
  for (const Layout& layout : layouts) {
    INFO(layout.name());
    test::check_equal_training(train(layout, model), expected, kTolerance);
  }
}

std::vector<Layout> sequence_layouts(VisionTraining vision) {
  std::vector<Layout> layouts{
      {.ring = 2},
      {.ulysses = 2},
      {.ring = 3, .mode = rl::CpFsdpMode::kNone},
      {.ulysses = 4, .mode = rl::CpFsdpMode::kNone},
      {.ring = 2, .ulysses = 2, .placement = sp::Placement::kContiguous},
      {.shard = 2, .ring = 2, .stage = 2},
      {.replicate = 2, .ulysses = 2, .activations = {engine::Recompute::kFull}},
      {.ulysses = 2, .shared_prefix = false},
      // A micro-batch for each document: some have no image, on some ranks of a shard alone.
      {.shard = 3, .stage = 3, .micro_batch_tokens = 20},
  };
  for (Layout& layout : layouts) {
    layout.vision = vision;
  }
  return layouts;
}

// Gradients of all units after a pass over documents with images, in one process.
std::vector<at::Tensor> gradients_of_runner(const engine::ModelConfig& model) {
  const sp::ProcessGroups groups = sp::single_rank_groups();
  auto decoder = std::make_unique<engine::Decoder>(test::tower_decoder(model));
  engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)), groups,
                             engine::AdamWOptions{});
  runner.take_images(test::drawn_images(*model.vision));
  const rl::LocalBatch local{sp::collate(test::image_documents(8), sp::Mesh({}, 0),
                                         engine::collator_options(model, 24, {})),
                             0};
  const auto inputs = rl::model_inputs(local, {}, at::kDouble);
  runner.train(inputs, test::entropy_loss);
  std::vector<at::Tensor> gradients;
  for (engine::ParamUnit* unit : runner.decoder().units()) {
    gradients.push_back(unit->grad().clone());
  }
  return gradients;
}

// The same, each document by itself through the tower and the decoder, without a runner.
std::vector<at::Tensor> gradients_of_documents(const engine::ModelConfig& model) {
  engine::Decoder decoder = test::tower_decoder(model);
  const engine::ImageInput input = test::drawn_images(*model.vision);
  for (const sp::Document& document : test::image_documents(8)) {
    std::vector<engine::PatchGrid> grids;
    std::vector<float> patches;
    for (const sp::DocumentImage& image : document.images) {
      const auto pixels = input.pixels(image.id);
      const auto rows = engine::patch_rows(pixels->image, input.processor);
      patches.insert(patches.end(), rows.begin(), rows.end());
      grids.push_back(pixels->grid);
    }
    const auto tokens = static_cast<int64_t>(document.ids.size());
    const auto field = [&](const char* name, at::ScalarType dtype, int64_t width) {
      const auto found = std::ranges::find(document.fields, name, &sp::TokenField::name);
      return at::from_blob(const_cast<uint8_t*>(found->bytes.data()), {tokens, width}, dtype)
          .to(at::kLong);
    };
    engine::ImageRows images;
    if (!grids.empty()) {
      const auto encoded = decoder.parameters().tower()->encode(
          at::tensor(patches, at::kDouble).view({-1, model.vision->row_size()}), grids);
      images = {field(sp::kImageRowField, at::kInt, 1).view({-1}).ge(0).nonzero().view({-1}),
                encoded.rows_iE, encoded.deepstack_iE};
    }
    test::LocalAttention attention({tokens});
    const at::Tensor hidden = decoder.forward(
        at::tensor(document.ids, at::kLong),
        field(sp::kPositionsField, at::kInt, 3).t().contiguous(), attention, nullptr, images);
    const auto& entries = document.entries;
    const at::Tensor temperature = at::ones({entries.size()}, at::kDouble);
    const engine::TokenScores scores =
        decoder.score(hidden.index_select(0, at::tensor(entries.source, at::kLong)),
                      at::tensor(entries.target, at::kLong), temperature);
    test::entropy_loss({scores.logprobs_n, scores.entropy_n, {}}, {}).backward();
  }
  std::vector<at::Tensor> gradients;
  for (engine::ParamUnit* unit : decoder.units()) {
    gradients.push_back(unit->grad().clone());
  }
  return gradients;
}

}  // namespace

TEST_CASE("a trained tower trains alike on every number of sequence-parallel ranks and shards") {
  for (const VisionFamily family : test::kVisionFamilies) {
    INFO("family " << static_cast<int>(family));
    check_layouts(test::tower_config(family), sequence_layouts(VisionTraining::kAll));
  }
}

TEST_CASE("a model trains alike beside a constant tower, and beside trained mergers") {
  for (const VisionTraining vision : {VisionTraining::kNothing, VisionTraining::kMergers}) {
    check_layouts(test::tower_config(VisionFamily::kQwen3Vl), sequence_layouts(vision));
  }
}

TEST_CASE("gradients, the tower's among them, are those of documents one by one") {
  for (const VisionFamily family : test::kVisionFamilies) {
    const engine::ModelConfig model = test::tower_config(family);
    const auto found = gradients_of_runner(model), expected = gradients_of_documents(model);
    REQUIRE(found.size() == expected.size());
    for (std::size_t unit = 0; unit < found.size(); ++unit) {
      INFO("family " << static_cast<int>(family) << ", unit " << unit);
      CHECK(test::max_abs_diff(found[unit], expected[unit]) < 1e-12);
      CHECK(expected[unit].abs().max().item<double>() > 0);
    }
  }
}

TEST_CASE("asynchronous Ulysses rotates by three positions, as synchronous does") {
  check_layouts(
      test::tower_config(VisionFamily::kQwen3Vl),
      {{.ulysses = 2, .async_ulysses = true},
       {.ring = 2, .ulysses = 2, .async_ulysses = true},
       {.ulysses = 2, .activations = {engine::Recompute::kSelective}, .async_ulysses = true}});
}

TEST_CASE("images train alike beside experts, delta nets, tensor ranks and adapters") {
  check_layouts(with_experts(), {{.ring = 2, .expert = 2},
                                 {.shard = 2, .ulysses = 2, .expert = 4},
                                 {.shard = 2, .expert = 2, .tensor = 2}});
  check_layouts(hybrid(), {{.ring = 2}, {.ulysses = 2}, {.ring = 2, .ulysses = 2}});
  check_layouts(test::tower_config(VisionFamily::kQwen3Vl),
                {{.tensor = 2},
                 {.ring = 2, .tensor = 2},
                 {.shard = 2, .ulysses = 2, .stage = 3, .tensor = 2}});
  check_layouts(test::tower_config(VisionFamily::kQwen2_5Vl),
                {{.ring = 2, .vision = VisionTraining::kNothing},
                 {.shard = 2, .tensor = 2, .vision = VisionTraining::kNothing}});
  check_layouts(test::tower_config(VisionFamily::kQwen3Vl),
                {{.ring = 2, .lora_rank = 2, .vision = VisionTraining::kNothing},
                 {.shard = 2, .ulysses = 2, .lora_rank = 2, .vision = VisionTraining::kNothing}});
}
