// The predicted peak of device memory against the stand-in's, on every layout.
#include "engine/runner/memory_estimate.h"

#include <algorithm>
#include <iostream>
#include <mutex>

#include "engine/runner/model_runner.h"
#include "rl/data/training_batch.h"
#include "sp/batch/collator.h"
#include "tests/support/catch.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

// Activations outweigh weights, as they do in training.
engine::ModelConfig model_config() {
  engine::ModelConfig config = test::tiny_config(/*vocab_size=*/256);
  config.hidden_size = 48;
  config.intermediate_size = 128;
  config.num_hidden_layers = 6;
  config.head_dim = 12;
  config.tie_word_embeddings = true;
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

struct Peaks {
  int64_t measured = 0;
  engine::MemoryEstimate predicted;
};

engine::PassShape shape_of(const sp::MicroBatch& batch, const engine::ModelConfig& config,
                           bool recompute) {
  engine::PassShape shape;
  shape.tokens = batch.ids_s.size(0);
  shape.share_tokens = batch.plan->share_rows;
  shape.entries = batch.num_entries();
  shape.query_heads = batch.plan->local_query_heads();
  shape.kv_heads = batch.plan->local_kv_heads();
  shape.logit_rows =
      engine::token_score_rows(at::empty({0, config.hidden_size}), config.vocab_size);
  shape.recompute_activations = recompute;
  return shape;
}

// Of rank 0 in one pass over one micro-batch of all documents.
Peaks train(sp::MeshShape mesh_shape, sp::RingImpl ring_impl, bool recompute) {
  Peaks peaks;
  standin::Scope scope;
  standin::run_standin_ranks(
      mesh_shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms, c10::Device device) {
        const engine::ComputeContext context(at::kFloat, device);
        auto decoder = std::make_unique<engine::Decoder>(model_config(), context);
        decoder->init_random(1, 0.1);
        decoder->set_recompute_activations(recompute);
        engine::ModelRunner runner(std::make_unique<engine::LanguageModel>(std::move(decoder)),
                                   comms, engine::AdamWOptions{});
        sp::SequenceOptions options;
        options.plan.ring_impl = ring_impl;
        const auto batches = sp::collate(documents(), mesh, {{4, 2, 12}, 4096, options});
        TORCH_CHECK(batches.size() == 1, batches.size(), " micro-batches");
        const std::vector<engine::ModelInput> inputs{
            {&batches[0], at::ones({batches[0].num_entries()})}};
        if (mesh.rank() == 0) {
          scope.reset_peak(0);
        }
        runner.train(inputs, [](const engine::HeadOutput& output, auto) {
          return output.logprobs_n.sum() * -1e-3;
        });
        if (mesh.rank() == 0) {
          peaks.measured = scope.peak_bytes(0);
          peaks.predicted = engine::estimate_memory(
              model_config(), context, shape_of(batches[0], model_config(), recompute));
        }
      });
  CHECK(scope.text() == "");
  return peaks;
}

}  // namespace

TEST_CASE("the peak of device memory is within 5 % of what shapes predict, on six layouts") {
  struct Layout {
    const char* name;
    sp::MeshShape mesh;
    sp::RingImpl ring_impl = sp::RingImpl::kP2p;
    bool recompute = false;
  };
  for (const Layout& layout :
       {Layout{"1", {1, 1, 1}}, Layout{"ulysses 2", {1, 1, 2}},
        Layout{"ring 2 x ulysses 2", {1, 2, 2}},
        Layout{"all-gather 2", {1, 2, 1}, sp::RingImpl::kAllGather}, Layout{"dp 2", {2, 1, 1}},
        Layout{"1, recomputed", {1, 1, 1}, sp::RingImpl::kP2p, true}}) {
    CAPTURE(layout.name);
    const Peaks peaks = train(layout.mesh, layout.ring_impl, layout.recompute);
    const double ratio =
        static_cast<double>(peaks.predicted.peak()) / static_cast<double>(peaks.measured);
    std::cout << layout.name << ": peak " << peaks.measured << " bytes, predicted / measured "
              << ratio << "\n";
    CHECK(ratio > 0.95);
    CHECK(ratio < 1.05);
  }
}
