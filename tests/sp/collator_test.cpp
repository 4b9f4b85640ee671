// Guards: a label that crosses a shard edge, a loss entry lost or on the wrong rank, fields cut by different
// permutations, and ranks that disagree about the plan without noticing.
#include "sp/collator/collator.h"

#include <random>

#include "sp/grad_sync.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

// Token ids are unique over all documents, so every column can say which token it belongs to.
std::vector<sp::Document> make_documents(const std::vector<int64_t>& lengths) {
  std::vector<sp::Document> documents;
  int64_t next_id = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    sp::Document document;
    for (int64_t i = 0; i < lengths[d]; ++i) {
      document.ids.push_back(next_id++);
    }
    document.entries = sp::blank_entries(std::max<int64_t>(0, lengths[d] - 1));
    for (int64_t i = 0; i + 1 < lengths[d]; ++i) {
      document.entries.source[i] = i;
      document.entries.target[i] = document.ids[i + 1];
      document.entries.sample[i] = static_cast<int64_t>(d);
      const double id = static_cast<double>(document.ids[i]);
      document.entries.rollout_logprob[i] = id + 0.1;
      document.entries.old_logprob[i] = id + 0.2;
      document.entries.reference_logprob[i] = id + 0.3;
      document.entries.advantage[i] = id + 0.4;
      document.entries.weight[i] = id + 0.5;
      document.entries.temperature[i] = id + 0.6;
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

}  // namespace

TEST_CASE("every entry is on exactly one rank, next to its token, with all its columns") {
  std::mt19937 rng(4);
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}, {1, 3, 1}}) {
    std::vector<int64_t> lengths(9);
    for (int64_t& n : lengths) {
      n = std::uniform_int_distribution<int64_t>(0, 17)(rng);
    }
    const auto documents = make_documents(lengths);
    int64_t num_entries = 0;
    for (const auto& d : documents) {
      num_entries += d.entries.size();
    }
    std::vector<int> seen(num_entries, 0);
    std::size_t num_micro_batches = 0;
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      const sp::Mesh mesh(shape, rank);
      const auto shards = sp::collate(documents, mesh, {{4, 2, 8}, 30, at::kDouble});
      REQUIRE((rank == 0 || shards.size() == num_micro_batches));
      num_micro_batches = shards.size();
      for (const sp::Shard& shard : shards) {
        const at::Tensor token = shard.ids_s.index_select(0, shard.source_n).to(at::kDouble);
        REQUIRE(at::equal(shard.target_n.to(at::kDouble), token + 1));
        REQUIRE(at::allclose(shard.rollout_logprob_n, token + 0.1));
        REQUIRE(at::allclose(shard.old_logprob_n, token + 0.2));
        REQUIRE(at::allclose(shard.reference_logprob_n, token + 0.3));
        REQUIRE(at::allclose(shard.advantage_n, token + 0.4));
        REQUIRE(at::allclose(shard.weight_n, token + 0.5));
        REQUIRE(at::allclose(shard.temperature_n, token + 0.6));
        for (const int64_t i : shard.entry_index) {
          ++seen[i];
        }
      }
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE("a token may carry several entries") {
  sp::Document document{{5, 6}, sp::blank_entries(3)};
  document.entries.target = {7, 8, 9};
  const auto shards = sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8});
  REQUIRE(shards.size() == 1);
  CHECK(at::equal(shards[0].target_n, at::tensor(std::vector<int64_t>{7, 8, 9}, at::kLong)));
  CHECK(at::equal(shards[0].source_n, at::zeros({3}, at::kLong)));
}

TEST_CASE("no documents at all still make one micro-batch on every rank") {
  const auto shards = sp::collate({}, sp::Mesh({2, 2, 1}, 3), {{1, 1, 4}, 8});
  REQUIRE(shards.size() == 1);
  CHECK(shards[0].ids_s.numel() == 0);
}

TEST_CASE("entries that do not fit their document are refused") {
  sp::Document document{{5, 6}, sp::blank_entries(1)};
  document.entries.source = {2};
  const std::vector<sp::Document> documents{document};
  CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8}),
                    Catch::Contains("document 0 has a loss entry at token 2 of 2"));
  document.entries.weight.clear();
  CHECK_THROWS_WITH(sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8}),
                    Catch::Contains("column weight has 0 values"));
}

TEST_CASE("gradients and scalars are summed, disagreement is an error on every rank") {
  test::run_ranks({2, 1, 2}, [](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    std::vector<at::Tensor> gradients{at::full({3}, mesh.rank() + 1.0), at::full({1}, 1.0, at::kDouble)};
    sp::sum_gradients(gradients, *comms.world);
    TORCH_CHECK(gradients[0][2].item<float>() == 10.0f && gradients[1].item<double>() == 4.0);
    TORCH_CHECK(sp::sum_scalars({1.0, mesh.rank() * 1.0}, *comms.world)[1] == 6.0);
    TORCH_CHECK(sp::max_scalars({mesh.rank() * 1.0}, *comms.world)[0] == 3.0);
    sp::check_agreement(42, "plan", *comms.world);
    bool thrown = false;
    try {
      sp::check_agreement(mesh.rank() == 2 ? 43 : 42, "plan", *comms.world);
    } catch (const c10::Error&) {
      thrown = true;
    }
    TORCH_CHECK(thrown);
  });
}
