// Guards: a label that crosses a shard edge, a loss entry lost or on the wrong rank, fields cut by different
// permutations, and ranks that disagree about the plan without noticing.
#include "sp/collator/collator.h"

#include <random>

#include "sp/collator/prefix_tree.h"
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
      const auto shards = sp::collate(documents, mesh, {{4, 2, 8}, 30, at::kDouble, {}});
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

TEST_CASE("a shared prefix becomes one segment, to any depth, and every document keeps its tokens") {
  const auto join = [](std::vector<int64_t> a, const std::vector<int64_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<int64_t> prompt(20, 1);
  const std::vector<int64_t> turn = join(prompt, std::vector<int64_t>(18, 2));
  const std::vector<std::vector<int64_t>> ids{join(prompt, {3, 4}), join(turn, {5}),  turn, join(turn, {6, 7}), {9, 9},
                                              prompt,               join(turn, {5}), {}};
  std::vector<const std::vector<int64_t>*> documents;
  for (const auto& document : ids) {
    documents.push_back(&document);
  }
  const auto tree = sp::build_prefix_tree(documents);
  CHECK(tree.forest.num_tokens() == 20 + 2 + 18 + 1 + 1 + 2 + 2);  // the two equal documents save too little to share
  std::vector<int64_t> packed(tree.forest.num_tokens(), -1);
  for (std::size_t d = 0; d < ids.size(); ++d) {
    const auto places = sp::packed_indices_of(tree, static_cast<int64_t>(d));
    REQUIRE(places.size() == ids[d].size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      REQUIRE((packed[places[i]] == -1 || packed[places[i]] == ids[d][i]));
      packed[places[i]] = ids[d][i];
    }
  }
  CHECK(std::count(packed.begin(), packed.end(), -1) == 0);
  CHECK(tree.paths[2].size() == 2);
  CHECK(sp::unshared_tree(documents).forest.num_tokens() == 22 + 39 + 38 + 40 + 2 + 20 + 39);
}

TEST_CASE("families keep to their budget and hold every document once") {
  std::vector<std::vector<int64_t>> ids;
  for (int64_t d = 0; d < 12; ++d) {
    ids.push_back(std::vector<int64_t>(30, d / 6));  // two prompts of 30 tokens, six completions of 10 each
    ids.back().insert(ids.back().end(), 10, 100 + d);
  }
  std::vector<const std::vector<int64_t>*> documents;
  for (const auto& document : ids) {
    documents.push_back(&document);
  }
  const auto tree = sp::build_prefix_tree(documents);
  CHECK(sp::cut_into_families(tree, 1000).size() == 2);
  std::vector<int> seen(ids.size(), 0);
  for (const auto& family : sp::cut_into_families(tree, 60)) {
    CHECK(family.tokens == 30 + 10 * static_cast<int64_t>(family.documents.size()));
    CHECK(family.tokens <= 60);
    for (const int64_t d : family.documents) {
      ++seen[d];
    }
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  CHECK(sp::cut_into_families(tree, 5).size() == 12);
}

TEST_CASE("one group on two data-parallel ranks is divided, not left to one of them") {
  std::vector<sp::Document> group;
  for (int64_t d = 0; d < 8; ++d) {
    std::vector<int64_t> ids(20, 1);
    ids.insert(ids.end(), 20, 10 + d);
    group.push_back({ids, sp::blank_entries(0)});
  }
  const auto plan = sp::plan_micro_batches(group, 2, 10000, /*shared_prefix=*/true);
  REQUIRE(plan.num_micro_batches() == 1);
  CHECK(plan.micro_batches[0][0].size() == 4);
  CHECK(plan.micro_batches[1][0].size() == 4);
}

TEST_CASE("entries of documents that share tokens stay with their tokens, and the saving is counted") {
  std::vector<sp::Document> documents;
  for (int64_t d = 0; d < 5; ++d) {
    sp::Document document{{}, sp::blank_entries(3)};
    for (int64_t i = 0; i < 24; ++i) {
      document.ids.push_back(i < 20 ? i : 100 * d + i);
    }
    document.entries.source = {19, 20, 22};
    for (std::size_t i = 0; i < 3; ++i) {
      document.entries.target[i] = document.ids[document.entries.source[i] + 1];
      document.entries.weight[i] = static_cast<double>(document.ids[document.entries.source[i]]);
    }
    documents.push_back(std::move(document));
  }
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 1, 3}}) {
    std::vector<int> seen(15, 0);
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      const auto shards = sp::collate(documents, sp::Mesh(shape, rank), {{4, 2, 8}, 1000, at::kDouble, {}});
      REQUIRE(shards.size() == 1);
      const sp::Shard& shard = shards[0];
      CHECK(shard.saving.raw_tokens == 120);
      CHECK(shard.saving.unique_tokens == 20 + 5 * 4);
      CHECK(shard.saving.raw_pairs == 5 * 24 * 25 / 2);
      CHECK(shard.saving.unique_pairs == 20 * 21 / 2 + 5 * (21 + 22 + 23 + 24));
      REQUIRE(at::equal(shard.ids_s.index_select(0, shard.source_n).to(at::kDouble), shard.weight_n));
      for (const int64_t i : shard.entry_index) {
        ++seen[i];
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE("a token may carry several entries") {
  sp::Document document{{5, 6}, sp::blank_entries(3)};
  document.entries.target = {7, 8, 9};
  const auto shards = sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, at::kFloat, {}});
  REQUIRE(shards.size() == 1);
  CHECK(at::equal(shards[0].target_n, at::tensor(std::vector<int64_t>{7, 8, 9}, at::kLong)));
  CHECK(at::equal(shards[0].source_n, at::zeros({3}, at::kLong)));
}

TEST_CASE("no documents at all still make one micro-batch on every rank") {
  const auto shards = sp::collate({}, sp::Mesh({2, 2, 1}, 3), {{1, 1, 4}, 8, at::kFloat, {}});
  REQUIRE(shards.size() == 1);
  CHECK(shards[0].ids_s.numel() == 0);
}

TEST_CASE("entries that do not fit their document are refused") {
  sp::Document document{{5, 6}, sp::blank_entries(1)};
  document.entries.source = {2};
  const std::vector<sp::Document> documents{document};
  CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, at::kFloat, {}}),
                    Catch::Contains("document 0 has a loss entry at token 2 of 2"));
  document.entries.weight.clear();
  CHECK_THROWS_WITH(sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, at::kFloat, {}}),
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
