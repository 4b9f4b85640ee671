// Guards: a model in stages that trains differently from a whole one, by any schedule and beside
// any other axis; messages that the plan does not know of; two copies of an embedding that part.
#include "engine/models/pipeline.h"

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
using Outcome = test::ShardOutcome;
using sp::PipelineSchedule;

constexpr int64_t kSteps = 3;

// Of rank 0.
Outcome train(const Layout& layout, const engine::ModelConfig& model,
              at::ScalarType dtype = at::kFloat) {
  Outcome outcome;
  const rl::ParallelConfig parallel = layout.config();
  test::run_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        Outcome own = test::train_sharded(layout, model, dtype,
                                          dtype == at::kDouble ? at::kDouble : at::kFloat, kSteps,
                                          mesh, groups);
        if (mesh.rank() == 0) {
          outcome = std::move(own);
        }
      },
      rl::sharding_axes(parallel));
  return outcome;
}

engine::ModelConfig dense(int64_t layers = 5) {
  engine::ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = false;
  config.num_hidden_layers = layers;
  return config;
}

// Every other layer has experts.
engine::ModelConfig with_experts() {
  engine::ModelConfig config = dense(4);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks.assign(4, {});
  config.blocks[1] = config.blocks[3] = {.channel_mixer = engine::ChannelMixerKind::kExperts};
  return config;
}

// The layout with its stages trains as the same one without.
void check_against_one_stage(const Layout& layout, const engine::ModelConfig& model,
                             double tolerance = 0.0, at::ScalarType dtype = at::kFloat) {
  CAPTURE(layout.name());
  Layout whole = layout;
  whole.pipeline = whole.stages_per_rank = 1;
  const Outcome expected = train(whole, model, dtype);
  test::check_equal_training(train(layout, model, dtype), expected, tolerance);
}

}  // namespace

TEST_CASE("stages train as the whole model does, to the bit, by every schedule") {
  const std::vector<Layout> layouts{
      {.pipeline = 2},
      {.pipeline = 2, .warm_up = 1},
      {.pipeline = 3, .schedule = PipelineSchedule::kGpipe},
      {.pipeline = 4, .warm_up = 3},
      {.pipeline = 2, .stages_per_rank = 2, .schedule = PipelineSchedule::kInterleaved},
      {.pipeline = 2,
       .stages_per_rank = 3,
       .schedule = PipelineSchedule::kInterleaved,
       .warm_up = 1},
  };
  for (const Layout& layout : layouts) {
    check_against_one_stage(layout, dense());
  }
}

TEST_CASE("stages train as the whole model beside every other axis") {
  const engine::ActivationOptions full{engine::Recompute::kFull};
  const engine::ActivationOptions selective{engine::Recompute::kSelective, /*offload=*/true,
                                            /*mlp_tile_tokens=*/5};
  const std::vector<Layout> layouts{
      {.replicate = 2, .activations = selective, .pipeline = 2},
      {.shard = 2, .stage = 1, .pipeline = 2, .warm_up = 1},
      {.shard = 2, .stage = 2, .activations = full, .pipeline = 2},
      {.shard = 2, .stage = 3, .pipeline = 2},
      {.ring = 2, .ulysses = 2, .mode = rl::CpFsdpMode::kNone, .pipeline = 2},
      {.shard = 2,
       .ring = 2,
       .stage = 3,
       .activations = selective,
       .pipeline = 2,
       .stages_per_rank = 2,
       .schedule = PipelineSchedule::kInterleaved},
      {.shard = 2,
       .stage = 3,
       .offload = rl::OptimizerOffload::kFull,
       .offload_parameters = true,
       .pipeline = 2},
  };
  for (const Layout& layout : layouts) {
    check_against_one_stage(layout, dense(4));
  }
}

TEST_CASE("stages with experts, delta nets and adapters train as the whole model") {
  check_against_one_stage({.shard = 2, .expert = 2, .pipeline = 2}, with_experts());
  check_against_one_stage({.ring = 2, .expert = 2, .pipeline = 2}, with_experts());
  check_against_one_stage({.shard = 2,
                           .activations = {engine::Recompute::kFull},
                           .expert = 2,
                           .pipeline = 2,
                           .stages_per_rank = 2,
                           .schedule = PipelineSchedule::kInterleaved},
                          with_experts());
  check_against_one_stage({.ulysses = 2, .pipeline = 2}, test::hybrid_config(true));
  // One unit of adapters a stage: their squares are added in another grouping.
  check_against_one_stage({.lora_rank = 4, .pipeline = 2}, dense(), 1e-12, at::kDouble);
}

TEST_CASE("any number of micro-batches goes through the stages") {
  // One, fewer than stages, and so many ranks that some have no token or one document alone.
  check_against_one_stage({.micro_batch_tokens = 1000, .pipeline = 3}, dense());
  check_against_one_stage({.documents = 3, .micro_batch_tokens = 12, .pipeline = 4}, dense());
  check_against_one_stage(
      {.replicate = 2, .ring = 2, .documents = 3, .micro_batch_tokens = 12, .pipeline = 2},
      dense());
}

TEST_CASE("backwards in two parts train as the whole model does, to the bit") {
  using enum PipelineSchedule;
  const std::vector<Layout> layouts{
      {.pipeline = 2, .schedule = kZeroBubble},
      {.pipeline = 3, .schedule = kZeroBubble},
      {.pipeline = 2, .stages_per_rank = 2, .schedule = kZeroBubble},
      {.pipeline = 2, .stages_per_rank = 2, .schedule = kZeroBubbleV},
      {.micro_batch_tokens = 1000, .pipeline = 2, .stages_per_rank = 2, .schedule = kZeroBubbleV},
      {.micro_batch_tokens = 1000, .pipeline = 3, .schedule = kZeroBubble},
      {.documents = 3, .micro_batch_tokens = 12, .pipeline = 4, .schedule = kZeroBubble},
      {.replicate = 2, .pipeline = 2, .stages_per_rank = 2, .schedule = kZeroBubbleV},
      {.shard = 2, .stage = 1, .pipeline = 2, .schedule = kZeroBubble},
      {.shard = 2, .stage = 2, .pipeline = 2, .schedule = kZeroBubble},
      {.shard = 2, .stage = 3, .pipeline = 2, .stages_per_rank = 2, .schedule = kZeroBubbleV},
      {.ring = 2,
       .ulysses = 2,
       .mode = rl::CpFsdpMode::kNone,
       .pipeline = 2,
       .schedule = kZeroBubble},
  };
  for (const Layout& layout : layouts) {
    check_against_one_stage(layout, dense());
  }
  check_against_one_stage({.shard = 2, .expert = 2, .pipeline = 2, .schedule = kZeroBubble},
                          with_experts());
  check_against_one_stage({.ulysses = 2, .pipeline = 2, .schedule = kZeroBubble},
                          test::hybrid_config(true));
  check_against_one_stage({.lora_rank = 4, .pipeline = 2, .schedule = kZeroBubble}, dense(), 1e-12,
                          at::kDouble);
}

TEST_CASE("an embedding that two stages share stays one") {
  engine::ModelConfig tied = dense();
  tied.tie_word_embeddings = true;
  check_against_one_stage({.pipeline = 2}, tied, 1e-6);
  check_against_one_stage({.pipeline = 2}, tied, 1e-12, at::kDouble);
  check_against_one_stage({.shard = 2, .stage = 3, .pipeline = 3}, tied, 1e-12, at::kDouble);
  check_against_one_stage(
      {.pipeline = 2, .stages_per_rank = 2, .schedule = PipelineSchedule::kZeroBubbleV}, tied,
      1e-12, at::kDouble);
}

TEST_CASE("stages send the hidden states of each micro-batch and their gradients, and no more") {
  const Layout layout{.ring = 2, .pipeline = 3};
  const Outcome outcome = train(layout, dense());
  // Rank 0 is of the first stage: it sends hidden states alone.
  const sp::Mesh mesh(rl::mesh_shape(layout.config()), 0);
  int64_t rows = 0;
  for (const sp::MicroBatch& batch :
       sp::collate(test::uneven_documents(layout.documents), mesh,
                   engine::collator_options(dense(), layout.micro_batch_tokens, {}))) {
    rows += batch.ids_s.numel();
  }
  REQUIRE(rows > 0);
  CHECK(outcome.stage_bytes == kSteps * rows * dense().hidden_size * 4);
}
