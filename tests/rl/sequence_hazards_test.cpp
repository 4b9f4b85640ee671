// Guards, one test each, the faults that other sequence-parallel trainers shipped (named by the projects' issues where
// they were found). The two that concern a single function are beside it: "a different loss on every rank" in
// tests/sp/functional_edges_test.cpp, "query heads must be a multiple of KV heads" in tests/sp/lse_merge_test.cpp.
// Oracle: one process in fp64.
#include <algorithm>
#include <cmath>

#include "engine/optim/adamw.h"
#include "rl/data/training_batch.h"
#include "rl/policy_update.h"
#include "rl/score_documents.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

engine::Decoder make_decoder() {
  return test::random_decoder(test::tiny_config(31), at::kDouble, 5);
}

// Every token but the first is scored, weight 1 / 100.
sp::Document make_document(int64_t length, int64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back((seed + 7 * i + i * i) % 31);
  }
  return rl::make_scored_document(std::move(ids), 1, 0.01);
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
        for (const auto& shard : sp::collate(documents, mesh, {{4, 2, 8}, budget, at::kDouble, options})) {
          check(shard);
        }
      }
    }
  }
}

rl::UpdateResult update(const std::vector<sp::Document>& documents, const sp::MeshShape& shape, int64_t budget,
                        const sp::SequenceOptions& options) {
  std::vector<rl::UpdateResult> results(shape.world_size());
  test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    auto decoder = make_decoder();
    engine::AdamW optimizer(decoder.units(), {});
    const auto shards = sp::collate(documents, mesh, {{4, 2, 8}, budget, at::kDouble, options});
    results[mesh.rank()] = rl::update_policy(decoder, optimizer, shards, rl::sft_loss, 1e-2, 0.0, comms);
  });
  return results.back();
}

void check_updates(const std::vector<sp::Document>& documents, int64_t budget) {
  const auto expected = update(documents, {1, 1, 1}, budget, {});
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      CAPTURE(shape.dp_replicate, shape.ring, shape.ulysses);
      const auto result = update(documents, shape, budget, options);
      CHECK(std::abs(result.sums.loss - expected.sums.loss) < 1e-12);
      CHECK(std::abs(result.grad_norm - expected.grad_norm) < 1e-10);
    }
  }
}

}  // namespace

TEST_CASE("hazard: a label is not lost or wrong at a shard's edge", "[hazard]") {  // transformers 36607, trl 4579
  const std::vector<sp::Document> documents{make_document(17, 3), make_document(5, 9), make_document(2, 1)};
  int64_t scored = 0;
  for_every_shard(documents, 100, [&](const sp::Shard& shard) {
    for (std::size_t i = 0; i < shard.entry_index.size(); ++i) {
      int64_t entry = shard.entry_index[i];
      std::size_t d = 0;
      while (entry >= documents[d].entries.size()) {
        entry -= documents[d++].entries.size();
      }
      REQUIRE(shard.target_n[i].item<int64_t>() == documents[d].entries.target[entry]);
      REQUIRE(shard.ids_s[shard.source_n[i].item<int64_t>()].item<int64_t>() == documents[d].ids[entry]);
      ++scored;
    }
  });
  CHECK(scored == static_cast<int64_t>(kMeshes.size() * all_options().size()) * (16 + 4 + 1));
  check_updates(documents, 100);
}

TEST_CASE("hazard: RoPE positions count within each document, whatever order its tokens are in", "[hazard]") {  // Megatron 5243
  std::vector<sp::Document> documents;
  for (const int64_t length : {13, 6, 21}) {  // ids say where in its document a token is
    sp::Document document{{}, sp::blank_entries(0)};
    for (int64_t i = 0; i < length; ++i) {
      document.ids.push_back(i);
    }
    documents.push_back(std::move(document));
  }
  for_every_shard(documents, 100,
                  [](const sp::Shard& shard) { REQUIRE(at::equal(shard.positions_s, shard.ids_s)); });
}

TEST_CASE("hazard: what a document attends to ends at its own edges", "[hazard]") {  // TE 3331, axolotl 3608
  // Lengths that 2 x ring does not divide; changing one document must not move another's log-probs by a bit.
  const std::vector<sp::Document> before{make_document(7, 3), make_document(1, 2), make_document(12, 5)};
  std::vector<sp::Document> after = before;
  std::reverse(after[2].ids.begin(), after[2].ids.end());
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
        const auto decoder = make_decoder();
        const auto first = rl::score_documents(decoder, before, mesh, comms, {100, options});
        const auto second = rl::score_documents(decoder, after, mesh, comms, {100, options});
        TORCH_CHECK(first[0] == second[0], "the first document's log-probs moved");
        TORCH_CHECK(first[2] != second[2], "the changed document's log-probs did not move");
      });
    }
  }
}

TEST_CASE("hazard: ranks whose tokens are all masked, and no loss token anywhere, give no NaN", "[hazard]") {  // Megatron 1764
  std::vector<sp::Document> documents{make_document(20, 3), make_document(20, 4)};
  documents[0].entries = sp::blank_entries(0);  // under document-aware placement a whole rank
  check_updates(documents, 100);
  documents[1].entries = sp::blank_entries(0);
  for (const auto& options : all_options()) {
    const auto result = update(documents, {1, 2, 1}, 100, options);
    CHECK(result.grad_norm == 0.0);
    CHECK(result.sums.loss == 0.0);
  }
}

TEST_CASE("hazard: temperature and log-probs travel by the same permutation as the tokens", "[hazard]") {  // verl 5957, 3724
  std::vector<sp::Document> documents{make_document(14, 3), make_document(9, 8)};
  for (sp::Document& document : documents) {
    for (std::size_t i = 0; i < document.entries.temperature.size(); ++i) {
      document.entries.temperature[i] = 0.5 + 0.1 * static_cast<double>(i);
    }
  }
  std::vector<std::vector<double>> expected;
  test::run_ranks({1, 1, 1}, [&](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    expected = rl::score_documents(make_decoder(), documents, mesh, comms, {100, {}});
  });
  for (const auto& shape : kMeshes) {
    for (const auto& options : all_options()) {
      test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
        const auto found = rl::score_documents(make_decoder(), documents, mesh, comms, {100, options});
        for (std::size_t d = 0; d < found.size(); ++d) {
          for (std::size_t i = 0; i < found[d].size(); ++i) {
            TORCH_CHECK(std::abs(found[d][i] - expected[d][i]) < 1e-12, "entry ", i, " of document ", d);
          }
        }
      });
    }
  }
}

TEST_CASE("hazard: uneven work keeps the number of micro-batches equal on all ranks", "[hazard]") {  // verl 6176
  std::vector<sp::Document> documents{make_document(30, 1), make_document(3, 2), make_document(2, 3)};
  const auto plan = sp::plan_micro_batches(documents, 2, 16, /*shared_prefix=*/true);
  CHECK(plan.micro_batches[0].size() == plan.micro_batches[1].size());
  check_updates(documents, 16);
}
