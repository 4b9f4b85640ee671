// The predicted peak of device memory against the stand-in's, on every layout.
#include "engine/runner/memory_estimate.h"

#include <algorithm>
#include <iostream>
#include <mutex>

#include "engine/runner/model_runner.h"
#include "rl/data/training_batch.h"
#include "rl/setup/sharding.h"
#include "sp/batch/collator.h"
#include "tests/support/catch.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

// Activations outweigh weights, as they do in training.
engine::ModelConfig model_config(int64_t layers, int64_t experts) {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/256);
  config.hidden_size = 48;
  config.intermediate_size = 128;
  config.num_hidden_layers = layers;
  config.head_dim = 12;
  config.tie_word_embeddings = true;
  config.experts = {experts, 2, 48, true, {}};
  return config;
}

std::vector<sp::Document> documents() {
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < 8; ++d) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 300; ++i) {
      ids.push_back((7 * i + 31 * d) % 256);
    }
    all.push_back(rl::make_scored_document(std::move(ids), 100));
  }
  return all;
}

struct Layout {
  const char* name;
  sp::MeshShape mesh;
  engine::ActivationOptions activations;
  sp::RingImpl ring_impl = sp::RingImpl::kP2p;
  int64_t layers = 6;
  int64_t stage = 0;  // of sharding over all ranks but the replicas; 0: not sharded
  int64_t experts = 0;

  rl::ParallelConfig parallel() const {
    rl::ParallelConfig config;
    config.data_parallel_replicate_size = mesh.dp_replicate;
    config.data_parallel_shard_size = mesh.dp_shard;
    config.ringattn_parallel_size = mesh.ring;
    config.ulysses_parallel_size = mesh.ulysses;
    config.cp_fsdp_mode = stage > 0 ? rl::CpFsdpMode::kAll : rl::CpFsdpMode::kNone;
    config.zero_stage = stage > 0 ? stage : 3;
    return config;
  }
};

// Device bytes of rank 0.
struct Peaks {
  int64_t before = 0;    // the pass begins: weights and moments
  int64_t held = 0;      // at the end of the forward
  int64_t measured = 0;  // at the peak
  engine::MemoryEstimate predicted;
};

engine::PassShape shape_of(const sp::MicroBatch& batch, const engine::ModelConfig& config,
                           const engine::ActivationOptions& activations,
                           const at::TensorOptions& options) {
  engine::PassShape shape;
  shape.tokens = batch.ids_s.size(0);
  shape.share_tokens = batch.plan->share_rows;
  shape.entries = batch.num_entries();
  shape.query_heads = batch.plan->local_query_heads();
  shape.kv_heads = batch.plan->local_kv_heads();
  shape.logit_rows =
      engine::token_score_rows(options, config.vocab_size, activations.logit_chunk_bytes);
  shape.logit_bytes = engine::bytes_per_logit(options);
  shape.ring_ranks = batch.plan->ring_size();
  shape.gathers_kv = batch.plan->options.ring_impl == sp::RingImpl::kAllGather;
  shape.activations = activations;
  return shape;
}

// One pass over one micro-batch of all documents.
Peaks train(const Layout& layout) {
  Peaks peaks;
  standin::Scope scope;
  standin::run_standin_ranks(
      layout.mesh,
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms, c10::Device device) {
        engine::ComputeContext context(at::kFloat, device);
        context.sharding = rl::make_sharding(layout.parallel(), comms);
        const engine::ModelConfig config = model_config(layout.layers, layout.experts);
        auto decoder = std::make_unique<engine::Decoder>(config, context);
        decoder->init_random(1, 0.1);
        decoder->set_activation_options(layout.activations);
        engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)),
                                   comms, engine::AdamWOptions{});
        sp::SequenceOptions options;
        options.plan.ring_impl = layout.ring_impl;
        const auto batches = sp::collate(documents(), mesh, {{4, 2, 12}, 4096, options});
        TORCH_CHECK(batches.size() == 1, batches.size(), " micro-batches");
        const std::vector<engine::ModelInput> inputs{
            {&batches[0], at::ones({batches[0].num_entries()})}};
        if (mesh.rank() == 0) {
          scope.reset_peak(0);
          peaks.before = scope.current_bytes(0);
        }
        runner.train(inputs, [&](const engine::HeadOutput& output, auto) {
          if (mesh.rank() == 0) {
            peaks.held = scope.current_bytes(0);
          }
          return output.logprobs_n.sum() * -1e-3;
        });
        if (mesh.rank() == 0) {
          peaks.measured = scope.peak_bytes(0);
          engine::PassShape shape =
              shape_of(batches[0], config, layout.activations, context.compute_options());
          if (layout.stage > 0) {
            shape.state.shard_ranks = mesh.size(sp::axes::fsdp(sp::CpFsdpMode::kAll));
            shape.state.zero_stage = layout.stage;
          }
          peaks.predicted = engine::estimate_memory(config, context, shape);
        }
      },
      std::chrono::seconds(20), rl::sharding_axes(layout.parallel()));
  CHECK(scope.text() == "");
  return peaks;
}

}  // namespace

TEST_CASE("the peak of device memory is within 5 % of what shapes predict") {
  using engine::Recompute;
  const auto p2p = sp::RingImpl::kP2p;
  for (const Layout& layout : std::vector<Layout>{
           {"1", {1, 1, 1}, {}},
           {"ulysses 2", {1, 1, 2}, {}},
           {"ring 2 x ulysses 2", {1, 2, 2}, {}},
           {"all-gather 2", {1, 2, 1}, {}, sp::RingImpl::kAllGather},
           {"dp 2", {2, 1, 1}, {}},
           {"1, recomputed", {1, 1, 1}, {Recompute::kFull}},
           {"1, without attention", {1, 1, 1}, {Recompute::kSelective}},
           {"ring 2 x ulysses 2, without attention", {1, 2, 2}, {Recompute::kSelective}},
           {"1, recomputed, offloaded", {1, 1, 1}, {Recompute::kFull, true}},
           {"ulysses 2, without attention, offloaded", {1, 1, 2}, {Recompute::kSelective, true}},
           {"1, recomputed in tiles", {1, 1, 1}, {Recompute::kFull, false, 200}},
           {"1, all of it", {1, 1, 1}, {Recompute::kSelective, true, 200}},
           {"shard 2, stage 1", {1, 1, 1, 2}, {}, p2p, 6, 1},
           {"shard 3, stage 3", {1, 1, 1, 3}, {}, p2p, 6, 3},
           {"shard 2, stage 3, recomputed", {1, 1, 1, 2}, {Recompute::kFull}, p2p, 6, 3},
           {"ulysses 2, stage 3, offloaded", {1, 1, 2}, {Recompute::kFull, true}, p2p, 6, 3},
           {"1, experts", {1, 1, 1}, {}, p2p, 6, 0, 8},
           {"ulysses 2, experts, recomputed", {1, 1, 2}, {Recompute::kFull}, p2p, 6, 0, 8},
           {"shard 2, experts, stage 3", {1, 1, 1, 2}, {}, p2p, 6, 3, 8}}) {
    CAPTURE(layout.name);
    const Peaks peaks = train(layout);
    const double ratio =
        static_cast<double>(peaks.predicted.peak()) / static_cast<double>(peaks.measured);
    std::cout << layout.name << ": peak " << peaks.measured << " bytes, predicted / measured "
              << ratio << "\n";
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}

TEST_CASE(
    "with recomputation and offload the device part of activations does not grow with depth") {
  using engine::Recompute;
  for (const Recompute recompute : {Recompute::kFull, Recompute::kSelective}) {
    for (const sp::MeshShape mesh : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 2}}) {
      const auto grown = [&](bool offload) {
        const Peaks shallow = train({"", mesh, {recompute, offload}, sp::RingImpl::kP2p, 3});
        const Peaks deep = train({"", mesh, {recompute, offload}, sp::RingImpl::kP2p, 9});
        // A third of the moments and weights beside them is a gradient's share.
        const int64_t gradients = (deep.before - shallow.before) / 3;
        return std::pair{
            (deep.held - deep.before) - (shallow.held - shallow.before),
            (deep.measured - deep.before) - (shallow.measured - shallow.before) - gradients};
      };
      const int64_t input = 2400 / mesh.sp_size() * 48 * 4;  // bytes of a layer's input
      CHECK(grown(false).first >= 6 * input * 0.9);
      const auto [held_off, peak_off] = grown(true);
      CAPTURE(static_cast<int>(recompute), mesh.sp_size(), input, held_off, peak_off);
      CHECK(held_off == 0);
      CHECK(peak_off <= input / 10);
    }
  }
}
