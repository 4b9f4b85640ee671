// One forward and backward on the stand-in, with Muon the optimizer step too, with the device bytes
// of rank 0 and those that shapes predict.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/random_weights.h"
#include "engine/runner/collator_options.h"
#include "engine/runner/memory_estimate.h"
#include "engine/runner/model_runner.h"
#include "rl/setup/sharding.h"
#include "sp/batch/collator.h"
#include "tests/support/standin/ranks.h"

namespace ringside::standin {

struct PassLayout {
  sp::MeshShape mesh;
  engine::ActivationOptions activations;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  int64_t stage = 0;               // of sharding over all ranks but the replicas; 0: not sharded
  bool optimizer_on_host = false;  // masters, gradients and moments; needs a stage
  std::optional<engine::AdapterShape> adapters{};
  sp::Placement placement = sp::Placement::kDocumentAware;
  engine::VisionTraining vision = engine::VisionTraining::kNothing;
  bool muon = false;

  rl::ParallelConfig parallel() const {
    rl::ParallelConfig config;
    config.data_parallel_replicate_size = mesh.dp_replicate;
    config.data_parallel_shard_size = mesh.dp_shard;
    config.ringattn_parallel_size = mesh.ring;
    config.ulysses_parallel_size = mesh.ulysses;
    config.expert_parallel_size = mesh.expert;
    config.tensor_parallel_size = mesh.tensor;
    config.pipeline_parallel_size = mesh.pipeline;
    config.cp_fsdp_mode = stage > 0 ? rl::CpFsdpMode::kAll : rl::CpFsdpMode::kNone;
    config.zero_stage = stage > 0 ? stage : 3;
    return config;
  }
};

// Device bytes of rank 0.
struct MeasuredPass {
  int64_t before = 0;  // the pass begins: weights and moments
  int64_t held = 0;    // at the end of the forward
  int64_t peak = 0;
  engine::MemoryEstimate predicted;
  std::string reports;  // faults that the stand-in found; empty when there are none
};

inline engine::PassShape pass_shape(const sp::MicroBatch& batch, const engine::ModelConfig& config,
                                    const PassLayout& layout, const sp::Mesh& mesh,
                                    const at::TensorOptions& options) {
  engine::PassShape shape;
  shape.tokens = batch.ids_s.size(0);
  shape.share_tokens = batch.any_plan().share_rows;
  shape.entries = batch.num_entries();
  shape.query_heads = batch.any_plan().local_query_heads();
  shape.kv_heads = batch.any_plan().local_kv_heads();
  shape.tensor_ranks = layout.mesh.tensor;
  shape.state.tensor_ranks = layout.mesh.tensor;
  const int64_t words = sp::even_part(config.vocab_size, layout.mesh.tensor, 0).size();
  shape.logit_rows = engine::token_score_rows(options, words, layout.activations.logit_chunk_bytes);
  shape.logit_bytes = engine::bytes_per_logit(options);
  shape.ring_ranks = batch.any_plan().ring_size();
  shape.gathers_kv = batch.any_plan().options.ring_impl == sp::RingImpl::kAllGather;
  if (batch.state_plan != nullptr) {
    shape.delta = engine::delta_shape(*batch.state_plan);
  }
  shape.activations = layout.activations;
  if (layout.stage > 0) {
    shape.state.shard_ranks = mesh.size(sp::axes::fsdp(sp::CpFsdpMode::kAll));
    shape.state.zero_stage = layout.stage;
    shape.state.masters_on_host = layout.optimizer_on_host;
  }
  shape.state.expert_ranks = layout.mesh.expert;
  shape.state.expert_shard_ranks = layout.mesh.expert > 1
                                       ? mesh.size(rl::expert_shard_axes(layout.parallel()).shard)
                                       : shape.state.shard_ranks;
  shape.adapters = layout.adapters;
  shape.state.muon = layout.muon;
  shape.vision = layout.vision;
  if (batch.image_plan != nullptr) {
    const sp::ImagePlan& plan = *batch.image_plan;
    for (const int64_t image : plan.own_images()) {
      shape.patches += batch.images[image].grid.patches();
    }
    shape.image_rows = std::ssize(plan.place_rows);
    shape.kept_image_rows = plan.encoded_rows;
  }
  return shape;
}

// All documents are one micro-batch. deadline: of collectives. images: the pixels of one rank, for
// documents with images.
inline MeasuredPass measure_pass(const engine::ModelConfig& config, at::ScalarType dtype,
                                 const std::vector<sp::Document>& documents,
                                 const PassLayout& layout,
                                 std::chrono::seconds deadline = std::chrono::seconds(20),
                                 const std::function<engine::ImageInput()>& images = {}) {
  MeasuredPass pass;
  Scope scope;
  int64_t tokens = 0;
  for (const sp::Document& document : documents) {
    tokens += static_cast<int64_t>(document.ids.size());
  }
  const RankBody body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms,
                            c10::Device device) {
    const bool is_measured = mesh.rank() == 0;
    engine::ComputeContext context(dtype, device);
    context.sharding = rl::make_sharding(layout.parallel(), comms);
    context.experts = rl::make_expert_sharding(layout.parallel(), comms);
    context.tensor = rl::make_tensor_sharding(layout.parallel(), comms);
    context.host_master = layout.optimizer_on_host;
    engine::WeightStorage storage;
    if (layout.adapters) {
      storage = {true, layout.adapters->base};
    }
    storage.vision = layout.vision;
    engine::RandomWeights draw(config, 1, 0.1);
    auto decoder = std::make_unique<engine::Decoder>(config, context, storage, std::ref(draw));
    if (layout.adapters) {
      decoder->add_adapters(layout.adapters->options).init_random(2);
    }
    decoder->set_activation_options(layout.activations);
    engine::AdamWOptions optimizer;
    if (layout.muon) {
      optimizer.muon.emplace();
    }
    engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)), comms,
                               optimizer);
    if (images) {
      runner.take_images(images());
    }
    sp::SequenceOptions options;
    options.plan.ring_impl = layout.ring_impl;
    options.placement = layout.placement;
    const auto batches = sp::collate(
        documents, mesh,
        engine::collator_options(config, tokens, options, engine::tensor_place(context)));
    TORCH_CHECK(batches.size() == 1, batches.size(), " micro-batches");
    const std::vector<engine::ModelInput> inputs{
        {&batches[0], at::ones({batches[0].num_entries()})}};
    if (is_measured) {
      scope.reset_peak(0);
      pass.before = scope.current_bytes(0);
    }
    runner.train(inputs, [&](const engine::HeadOutput& output, auto) {
      if (is_measured) {
        pass.held = scope.current_bytes(0);
      }
      return output.logprobs_n.sum() * -1e-3;
    });
    if (layout.muon) {
      runner.step(1e-3, 1.0);
    }
    if (is_measured) {
      pass.peak = scope.peak_bytes(0);
      pass.predicted = engine::estimate_memory(
          config, context, pass_shape(batches[0], config, layout, mesh, context.compute_options()));
    }
  };
  run_standin_ranks_in_memory(layout.mesh, body, deadline, rl::sharding_axes(layout.parallel()));
  pass.reports = scope.text();
  return pass;
}

}  // namespace ringside::standin
