// The predicted peak of device memory of a pipeline's ranks against the stand-in's, by every
// schedule, with tensor-parallel ranks in a stage and without.
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "engine/models/pipeline.h"
#include "rl/data/training_batch.h"
#include "rl/setup/sharding.h"
#include "tests/standin/measured_pass.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_model.h"

using namespace ringside;
using sp::PipelineSchedule;

namespace {

constexpr int64_t kMicroBatchTokens = 600;  // of a micro-batch
constexpr int64_t kMicroBatches = 4;

struct MeasuredLine {
  standin::PassLayout layout;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t stages_per_rank = 1;
};

// Activations outweigh weights, as they do in training.
engine::ModelConfig staged_model() {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/256);
  config.hidden_size = 48;
  config.intermediate_size = 128;
  config.num_hidden_layers = 8;
  config.head_dim = 12;
  config.tie_word_embeddings = false;
  return config;
}

// Of which each data-parallel rank has kMicroBatches micro-batches of equal length.
std::vector<sp::Document> equal_documents(int64_t data_ranks) {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < kMicroBatches * 2 * data_ranks; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kMicroBatchTokens / 2; ++i) {
      ids.push_back((7 * i + 31 * d) % 256);
    }
    all.push_back(rl::make_scored_document(std::move(ids), 100));
  }
  return all;
}

struct RankPeak {
  int64_t measured = 0, predicted = 0;
};

RankPeak peak_of_rank(const MeasuredLine& line, const sp::Mesh& mesh,
                      const sp::ProcessGroups& groups, c10::Device device, standin::Scope& scope) {
  const engine::ModelConfig model = staged_model();
  const sp::PipelineShape shape{line.layout.mesh.pipeline, line.stages_per_rank,
                                line.schedule == PipelineSchedule::kZeroBubbleV
                                    ? sp::StageOrder::kVee
                                    : sp::StageOrder::kLoop};
  engine::ComputeContext context(at::kFloat, device);
  context.sharding = rl::make_sharding(line.layout.parallel(), groups);
  context.tensor = rl::make_tensor_sharding(line.layout.parallel(), groups);
  context.pipeline = std::make_shared<const engine::Pipeline>(
      engine::Pipeline{shape, groups.tensors(sp::axes::kPipeline), line.schedule});
  std::vector<std::unique_ptr<engine::Decoder>> decoders;
  const engine::RankStages rank{
      engine::own_stages(model, context.pipeline.get()),
      sp::held_at_backwards(
          engine::pipeline_plan(shape, line.schedule, /*warm_up=*/0, kMicroBatches), shape,
          context.pipeline->line->rank())};
  for (const engine::Stage& stage : rank.stages) {
    engine::RandomWeights draw(model, 1, 0.1);
    decoders.push_back(std::make_unique<engine::Decoder>(model, stage, context,
                                                         engine::WeightStorage{}, std::ref(draw)));
    decoders.back()->set_activation_options(line.layout.activations);
  }
  engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoders)), groups,
                             engine::AdamWOptions{});
  const auto batches = sp::collate(
      equal_documents(line.layout.mesh.dp_size()), mesh,
      engine::collator_options(model, kMicroBatchTokens, {}, engine::tensor_place(context)));
  TORCH_CHECK(batches.size() == kMicroBatches, batches.size(), " micro-batches");
  std::vector<engine::ModelInput> inputs;
  for (const sp::MicroBatch& batch : batches) {
    inputs.push_back({&batch, at::ones({batch.num_entries()})});
  }
  const auto index = static_cast<int>(mesh.rank());
  scope.reset_peak(index);
  runner.train(inputs, [](const engine::HeadOutput& output, auto) {
    return output.logprobs_n.sum() * -1e-3;
  });
  engine::PassShape pass =
      standin::pass_shape(batches[0], model, line.layout, mesh, context.compute_options());
  pass.accumulates = true;
  return {scope.peak_bytes(index), engine::estimate_memory(model, context, pass, rank).peak()};
}

}  // namespace

TEST_CASE("the peak of a pipeline's ranks is predicted, with tensor ranks too") {
  using engine::Recompute;
  const auto on = [](int64_t pipeline, int64_t tensor, const engine::ActivationOptions& activations,
                     int64_t shard = 1) {
    standin::PassLayout layout{{}, activations};
    layout.mesh.pipeline = pipeline;
    layout.mesh.tensor = tensor;
    layout.mesh.dp_shard = shard;
    layout.stage = shard > 1 ? 3 : 0;
    return layout;
  };
  for (const auto& [name, line] : std::vector<std::pair<const char*, MeasuredLine>>{
           {"1f1b, 2", {on(2, 1, {})}},
           {"1f1b, 4", {on(4, 1, {})}},
           {"1f1b, 2, recomputed", {on(2, 1, {Recompute::kFull})}},
           {"gpipe, 2", {on(2, 1, {}), PipelineSchedule::kGpipe}},
           {"interleaved, 2", {on(2, 1, {}), PipelineSchedule::kInterleaved, 2}},
           {"zero bubble, 2", {on(2, 1, {}), PipelineSchedule::kZeroBubble}},
           {"zero bubble, 3", {on(3, 1, {}), PipelineSchedule::kZeroBubble}},
           {"zero bubble in a V, 2", {on(2, 1, {}), PipelineSchedule::kZeroBubbleV, 2}},
           {"1f1b, 2 x tensor 2", {on(2, 2, {})}},
           {"gpipe, 2 x tensor 2", {on(2, 2, {}), PipelineSchedule::kGpipe}},
           {"interleaved, 2 x tensor 2", {on(2, 2, {}), PipelineSchedule::kInterleaved, 2}},
           {"1f1b, 2 x tensor 2 x shard 2, recomputed", {on(2, 2, {Recompute::kFull}, 2)}}}) {
    CAPTURE(name);
    standin::Scope scope;
    std::vector<RankPeak> peaks(line.layout.mesh.world_size());
    standin::run_standin_ranks_in_memory(
        line.layout.mesh,
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device device) {
          peaks[mesh.rank()] = peak_of_rank(line, mesh, groups, device, scope);
        },
        std::chrono::seconds(20), rl::sharding_axes(line.layout.parallel()));
    CHECK(scope.text() == "");
    // Tensor rank 0 has the most heads and columns, and all shards are alike.
    const int64_t of_stage = line.layout.mesh.stage_size();
    for (int64_t rank = 0; rank < line.layout.mesh.pipeline; ++rank) {
      const RankPeak& peak = peaks[rank * of_stage];
      const double ratio = static_cast<double>(peak.predicted) / static_cast<double>(peak.measured);
      std::cout << name << ", rank " << rank << ": peak " << peak.measured
                << " bytes, predicted / measured " << ratio << "\n";
      CHECK(ratio > 0.95);
      CHECK(ratio < 1.05);
    }
  }
}
