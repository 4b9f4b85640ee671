// Guards: stages of tensor-parallel ranks that train differently from the same ranks without
// stages, or from one process; a tensor rank that sends another's rows to the next stage; bytes
// between ranks that shapes do not tell.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/pipeline.h"
#include "engine/nn/tensor_rows.h"
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

// Of every rank, in order.
std::vector<Outcome> train(const Layout& layout, const engine::ModelConfig& model,
                           at::ScalarType dtype, int64_t steps) {
  const rl::ParallelConfig parallel = layout.config();
  std::vector<Outcome> outcomes(rl::mesh_shape(parallel).world_size());
  test::run_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        outcomes[mesh.rank()] = test::train_sharded(layout, model, dtype,
                                                    dtype == at::kDouble ? at::kDouble : at::kFloat,
                                                    steps, mesh, groups);
      },
      rl::sharding_axes(parallel));
  return outcomes;
}

engine::ModelConfig dense(bool tied = false, int64_t layers = 3) {
  engine::ModelConfig config = test::tiny_config();
  config.tie_word_embeddings = tied;
  config.num_hidden_layers = layers;
  return config;
}

// Every other layer has experts.
engine::ModelConfig with_experts() {
  engine::ModelConfig config = dense(false, 4);
  config.experts = {.count = 5, .per_token = 2, .intermediate_size = 12, .normalise_weights = true};
  config.blocks.assign(4, {});
  config.blocks[1] = config.blocks[3] = {.channel_mixer = engine::ChannelMixerKind::kExperts};
  return config;
}

// The layout trains as the same tensor ranks without stages.
void check_against_one_stage(const Layout& layout, const engine::ModelConfig& model,
                             double tolerance = 0.0, at::ScalarType dtype = at::kFloat) {
  CAPTURE(layout.name());
  Layout whole = layout;
  whole.pipeline = whole.stages_per_rank = 1;
  const Outcome expected = train(whole, model, dtype, 2).front();
  test::check_equal_training(train(layout, model, dtype, 2).front(), expected, tolerance);
}

}  // namespace

TEST_CASE("stages of tensor ranks train as tensor ranks without stages, to the bit") {
  check_against_one_stage({.tensor = 2, .pipeline = 2}, dense());
  check_against_one_stage({.activations = {engine::Recompute::kSelective},
                           .tensor = 2,
                           .pipeline = 3,
                           .schedule = PipelineSchedule::kGpipe},
                          dense());
  check_against_one_stage({.shard = 2,
                           .stage = 2,
                           .activations = {engine::Recompute::kFull},
                           .tensor = 2,
                           .pipeline = 2,
                           .stages_per_rank = 2,
                           .schedule = PipelineSchedule::kInterleaved,
                           .warm_up = 1},
                          dense(false, 4));
  check_against_one_stage({.expert = 2, .tensor = 2, .pipeline = 2}, with_experts());
  check_against_one_stage(
      {.ulysses = 2, .tensor = 2, .pipeline = 2, .schedule = PipelineSchedule::kZeroBubble},
      dense());
}

TEST_CASE("an embedding that two stages share stays one, cut over tensor ranks") {
  check_against_one_stage({.tensor = 2, .pipeline = 2}, dense(/*tied=*/true), 1e-6);
  check_against_one_stage({.shard = 2, .tensor = 2, .pipeline = 2}, dense(/*tied=*/true), 1e-12,
                          at::kDouble);
}

TEST_CASE("stages of tensor ranks train as one process does, beside the other axes") {
  struct Case {
    const char* name;
    engine::ModelConfig model;
    Layout layout;
  };
  for (const Case& c :
       std::vector<Case>{{"dense, ring 2", dense(), {.ring = 2, .tensor = 2, .pipeline = 2}},
                         {"tied, shard 2",
                          dense(/*tied=*/true),
                          {.shard = 2, .stage = 3, .tensor = 2, .pipeline = 2}},
                         {"experts, ulysses 2",
                          with_experts(),
                          {.ulysses = 2, .expert = 2, .tensor = 2, .pipeline = 2}},
                         {"latent attention", test::latent_config(), {.tensor = 2, .pipeline = 2}},
                         {"delta nets", test::hybrid_config(true), {.tensor = 2, .pipeline = 2}}}) {
    DYNAMIC_SECTION(c.name) {
      const Outcome alone = train({}, c.model, at::kDouble, 5).front();
      test::check_equal_training(train(c.layout, c.model, at::kDouble, 5).front(), alone, 1e-10);
    }
  }
}

TEST_CASE("adapters of stages of tensor ranks train as on one process") {
  const Layout layout{.tensor = 2, .lora_rank = 3, .pipeline = 2}, alone{.lora_rank = 3};
  const Outcome expected = train(alone, dense(), at::kDouble, 3).front();
  test::check_equal_training(train(layout, dense(), at::kDouble, 3).front(), expected, 1e-10);
}

TEST_CASE("stages of tensor ranks take rows that do not divide, and fewer rows than ranks") {
  // Six tokens on seven ranks, of which the last has none; a replica without a document.
  for (const Layout& layout :
       {Layout{.tensor = 3, .pipeline = 2}, Layout{.documents = 1, .tensor = 7, .pipeline = 2},
        Layout{.replicate = 2, .documents = 1, .tensor = 2, .pipeline = 2}}) {
    CAPTURE(layout.name());
    const Layout alone{.documents = layout.documents};
    const Outcome expected = train(alone, dense(), at::kDouble, 2).front();
    const std::vector<Outcome> found = train(layout, dense(), at::kDouble, 2);
    test::check_equal_training(found.front(), expected, 1e-10);
    CHECK((found.front().empty_micro_batches > 0) == (layout.replicate > 1));
  }
}

TEST_CASE("bytes of stages of tensor ranks are those that shapes tell, on every rank") {
  constexpr int64_t kSteps = 2;
  const engine::ModelConfig model = dense(false, 4);
  for (const Layout& layout : {Layout{.ring = 2, .tensor = 2, .pipeline = 2},
                               Layout{.activations = {engine::Recompute::kFull},
                               .tensor = 3,
                               .pipeline = 2,
                               .stages_per_rank = 2,
                               .schedule = PipelineSchedule::kInterleaved}}) {
    CAPTURE(layout.name());
    const sp::MeshShape shape = rl::mesh_shape(layout.config());
    const std::vector<Outcome> found = train(layout, model, at::kFloat, kSteps);
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      CAPTURE(rank);
      CHECK(found[rank].sent_bytes > 0.0);
      CHECK(found[rank].sent_bytes == found[rank].predicted_bytes);
      const sp::Mesh mesh(shape, rank);
      const engine::TensorPlace place{mesh.coordinate(sp::axes::kTensor), shape.tensor};
      int64_t rows = 0;  // that the rank keeps
      for (const sp::MicroBatch& batch :
           sp::collate(test::uneven_documents(layout.documents), mesh,
                       engine::collator_options(model, layout.micro_batch_tokens, {}, place))) {
        rows += sp::even_part(batch.ids_s.numel(), shape.tensor, place.rank).size();
      }
      // Of 2 v stages in turns: hidden states from all but the last, gradients from all but the
      // first.
      const int64_t messages = 2 * layout.stages_per_rank - 1;
      CHECK(found[rank].stage_bytes == kSteps * messages * rows * model.hidden_size * 4);
    }
  }
}
