// Guards, one test each, the faults that other sequence-parallel trainers shipped (named by the
// projects' issues where they were found). The two that concern a single function are beside it: "a
// different loss on every rank" in tests/sp/functional_edges_test.cpp, "query heads must be a
// multiple of KV heads" in tests/sp/lse_merge_test.cpp. Oracle: one process in fp64.
#include <algorithm>
#include <cmath>

#include "engine/optim/adamw.h"
#include "rl/data/training_batch.h"
#include "rl/step/column_tensors.h"
#include "rl/step/policy_update.h"
#include "rl/step/score_documents.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

std::unique_ptr<engine::HeadedModel> make_model() {
  return std::make_unique<engine::LanguageModel>(std::make_unique<engine::Decoder>(
      test::random_decoder(test::tiny_config(31), at::kDouble, 5)));
}

// Every token but the first is scored.
sp::Document make_document(int64_t length, int64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back((seed + 7 * i + i * i) % 31);
  }
  return rl::make_scored_document(std::move(ids), 1);
}

const std::vector<sp::MeshShape> kMeshes{{1, 2, 1}, {1, 3, 1}, {1, 1, 3}, {1, 2, 2}, {2, 2, 1}};

std::vector<sp::SequenceOptions> all_options() {
  std::vector<sp::SequenceOptions> all;
  for (const auto ring_impl : {sp::RingImpl::kP2p, sp::RingImpl::kAllGather}) {
    for (const auto placement : {sp::Placement::kDocumentAware, sp::Placement::kZigzag}) {
      all.push_back({{ring_impl}, placement});
    }
  }
  return all;
}

// Calls check(mesh, options, shards) for every mesh, layout option and rank.
template <class Check>
void for_every_shard(const std::vector<sp::Document>& documents, int64_t budget, Check check) {
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
        const sp::Mesh mesh(shape, rank);
        for (const auto& shard : sp::collate(documents, mesh, {{4, 2, 8}, budget, options})) {
          check(shard);
        }
      }
    }
  }
}

rl::UpdateResult update(const std::vector<sp::Document>& documents, const sp::MeshShape& shape,
                        int64_t budget, const sp::SequenceOptions& options) {
  std::vector<rl::UpdateResult> results(shape.world_size());
  test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    engine::ModelRunner policy(make_model(), comms, engine::AdamWOptions{});
    const rl::LocalBatch local{sp::collate(documents, mesh, {{4, 2, 8}, budget, options}), 0};
    const auto inputs = rl::model_inputs(local, {}, at::kDouble);
    const auto loss = [](const engine::HeadOutput& output, const engine::Columns&,
                         rl::Figures& figures) {
      return rl::sft_loss(output.logprobs_n, output.entropy_n,
                          at::full_like(output.logprobs_n.detach(), 0.01), figures);
    };
    results[mesh.rank()] =
        rl::update_policy(policy, inputs, loss, {1e-2, 0.0}, *comms.control(sp::axes::kLoss));
  });
  return results.back();
}

void check_updates(const std::vector<sp::Document>& documents, int64_t budget) {
  const auto expected = update(documents, {1, 1, 1}, budget, {});
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      CAPTURE(shape.dp_replicate, shape.ring, shape.ulysses);
      const auto result = update(documents, shape, budget, options);
      CHECK(std::abs(result.figures["loss"] - expected.figures["loss"]) < 1e-12);
      CHECK(std::abs(result.grad_norm - expected.grad_norm) < 1e-10);
    }
  }
}

}  // namespace

TEST_CASE("hazard: a label is not lost or wrong at a shard's edge",
          "[hazard]") {  // transformers 36607, trl 4579
  const std::vector<sp::Document> documents{make_document(17, 3), make_document(5, 9),
                                            make_document(2, 1)};
  int64_t scored = 0;
  for_every_shard(documents, 100, [&](const sp::MicroBatch& shard) {
    for (std::size_t i = 0; i < shard.entry_index.size(); ++i) {
      int64_t entry = shard.entry_index[i];
      std::size_t d = 0;
      while (entry >= documents[d].entries.size()) {
        entry -= documents[d++].entries.size();
      }
      REQUIRE(shard.target_n[i].item<int64_t>() == documents[d].entries.target[entry]);
      REQUIRE(shard.ids_s[shard.source_n[i].item<int64_t>()].item<int64_t>() ==
              documents[d].ids[entry]);
      ++scored;
    }
  });
  CHECK(scored == static_cast<int64_t>(kMeshes.size() * all_options().size()) * (16 + 4 + 1));
  check_updates(documents, 100);
}

TEST_CASE("hazard: RoPE positions count within each document, whatever order its tokens are in",
          "[hazard]") {  // Megatron 5243
  std::vector<sp::Document> documents;
  for (const int64_t length : {13, 6, 21}) {  // ids say where in its document a token is
    sp::Document document;
    for (int64_t i = 0; i < length; ++i) {
      document.ids.push_back(i);
    }
    documents.push_back(std::move(document));
  }
  for_every_shard(documents, 100, [](const sp::MicroBatch& shard) {
    REQUIRE(at::equal(shard.positions_s, shard.ids_s));
  });
}

TEST_CASE("hazard: attention stays inside a document",
          "[hazard]") {  // TE 3331, axolotl 3608
  // Lengths that 2 x ring does not divide; changing one document must not move another's log-probs
  // by a bit.
  const std::vector<sp::Document> before{make_document(7, 3), make_document(1, 2),
                                         make_document(12, 5)};
  std::vector<sp::Document> after = before;
  std::reverse(after[2].ids.begin(), after[2].ids.end());
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const engine::ModelRunner model(make_model(), comms);
        const auto first = rl::score_documents(model, before, mesh, comms, {100, options});
        const auto second = rl::score_documents(model, after, mesh, comms, {100, options});
        TORCH_CHECK(first[0] == second[0], "the first document's log-probs moved");
        TORCH_CHECK(first[2] != second[2], "the changed document's log-probs did not move");
      });
    }
  }
}

TEST_CASE("hazard: ranks whose tokens are all masked, and no loss token anywhere, give no NaN",
          "[hazard]") {  // Megatron 1764
  std::vector<sp::Document> documents{make_document(20, 3), make_document(20, 4)};
  documents[0].entries = {};  // under document-aware placement a whole rank
  check_updates(documents, 100);
  documents[1].entries = {};
  for (const auto& options : all_options()) {
    const auto result = update(documents, {1, 2, 1}, 100, options);
    CHECK(result.grad_norm == 0.0);
    CHECK(result.figures["loss"] == 0.0);
  }
}

TEST_CASE("hazard: temperature and log-probs travel by the same permutation as the tokens",
          "[hazard]") {  // verl 5957, 3724
  const std::vector<sp::Document> documents{make_document(14, 3), make_document(9, 8)};
  rl::StepColumns columns;
  for (int64_t i = 0; i < documents[0].entries.size() + documents[1].entries.size(); ++i) {
    columns.temperature.push_back(0.5 + 0.1 * static_cast<double>(i % 13));
  }
  const auto logprobs = [&](const sp::MeshShape& shape, const sp::SequenceOptions& options) {
    std::vector<std::vector<double>> found(shape.world_size());
    test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
      const engine::ModelRunner model(make_model(), comms);
      const rl::LocalBatch local{sp::collate(documents, mesh, {{4, 2, 8}, 100, options}), 0};
      std::vector<double>& column = found[mesh.rank()];
      column.assign(columns.temperature.size(), 0.0);
      rl::ColumnOutputs outputs;
      model.evaluate(rl::model_inputs(local, columns, at::kDouble),
                     [&](std::size_t i, const engine::HeadOutput& output) {
                       outputs.add(column, local.micro_batches[i], 0, output.logprobs_n);
                     });
      outputs.store();
      std::vector<double>* merged[] = {&column};
      rl::merge_columns(merged, *comms.control(sp::axes::kLoss));
    });
    return found;
  };
  const std::vector<double> expected = logprobs({1, 1, 1}, {})[0];
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      for (const std::vector<double>& found : logprobs(shape, options)) {
        for (std::size_t i = 0; i < found.size(); ++i) {
          REQUIRE(std::abs(found[i] - expected[i]) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("hazard: uneven work keeps the number of micro-batches equal on all ranks",
          "[hazard]") {  // verl 6176
  std::vector<sp::Document> documents{make_document(30, 1), make_document(3, 2),
                                      make_document(2, 3)};
  const auto plan = sp::plan_micro_batches(documents, 2, 16, /*shared_prefix=*/true);
  CHECK(plan.micro_batches[0].size() == plan.micro_batches[1].size());
  check_updates(documents, 16);
}
