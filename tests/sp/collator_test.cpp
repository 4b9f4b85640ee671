// Guards: a label that crosses a shard edge, a loss entry lost or on the wrong rank, fields cut by
// different permutations, and ranks that disagree about the plan without noticing.
#include "sp/batch/collator.h"

#include <algorithm>
#include <random>

#include "sp/batch/prefix_tree.h"
#include "sp/mesh/control.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

std::vector<int64_t> join(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Token ids are unique over all documents, so an entry can be told by the token that scores it.
std::vector<sp::Document> make_documents(const std::vector<int64_t>& lengths) {
  std::vector<sp::Document> documents;
  int64_t next_id = 0;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    sp::Document document;
    for (int64_t i = 0; i < lengths[d]; ++i) {
      document.ids.push_back(next_id++);
    }
    for (int64_t i = 0; i + 1 < lengths[d]; ++i) {
      document.entries.add(i, document.ids[i + 1], static_cast<int64_t>(d));
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

}  // namespace

TEST_CASE(
    "every entry is on exactly one rank, next to its token, and names its place among all "
    "entries") {
  std::mt19937 rng(4);
  for (const auto& shape : std::vector<sp::MeshShape>{
           {1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 2}, {1, 3, 1}}) {
    std::vector<int64_t> lengths(9);
    for (int64_t& n : lengths) {
      n = std::uniform_int_distribution<int64_t>(0, 17)(rng);
    }
    const auto documents = make_documents(lengths);
    std::vector<int64_t> source_ids;  // of all entries, in the order (document, entry)
    std::vector<int64_t> samples;
    for (const auto& d : documents) {
      for (std::size_t i = 0; i < d.entries.source.size(); ++i) {
        source_ids.push_back(d.ids[d.entries.source[i]]);
        samples.push_back(d.entries.sample[i]);
      }
    }
    const auto num_entries = source_ids.size();
    std::vector<int> seen(num_entries, 0);
    std::size_t num_micro_batches = 0;
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      const sp::Mesh mesh(shape, rank);
      const auto batches = sp::collate(documents, mesh, {{4, 2, 8}, 30, {}});
      REQUIRE((rank == 0 || batches.size() == num_micro_batches));
      num_micro_batches = batches.size();
      for (const sp::MicroBatch& batch : batches) {
        const at::Tensor token = batch.ids_s.index_select(0, batch.source_n);
        REQUIRE(at::equal(batch.target_n, token + 1));
        REQUIRE(token.numel() == batch.num_entries());
        for (int64_t n = 0; n < batch.num_entries(); ++n) {
          REQUIRE(token[n].item<int64_t>() == source_ids[batch.entry_index[n]]);
          REQUIRE(batch.sample_n[n].item<int64_t>() == samples[batch.entry_index[n]]);
        }
        for (const int64_t i : batch.entry_index) {
          ++seen[i];
        }
      }
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE(
    "a shared prefix becomes one segment, to any depth, and every document keeps its tokens") {
  const std::vector<int64_t> prompt(20, 1);
  const std::vector<int64_t> turn = join(prompt, std::vector<int64_t>(18, 2));
  const std::vector<std::vector<int64_t>> ids{join(prompt, {3, 4}),
                                              join(turn, {5}),
                                              turn,
                                              join(turn, {6, 7}),
                                              {9, 9},
                                              prompt,
                                              join(turn, {5}),
                                              {}};
  std::vector<const std::vector<int64_t>*> documents;
  for (const auto& document : ids) {
    documents.push_back(&document);
  }
  const auto tree = sp::build_prefix_tree(documents);
  CHECK(tree.forest.num_tokens() ==
        20 + 2 + 18 + 1 + 1 + 2 + 2);  // the two equal documents save too little to share
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

// Equal ids with other rows are other tokens: they were computed with other experts.
TEST_CASE("a prefix tree shares tokens as far as ids and rows agree") {
  const std::vector<int64_t> prompt(40, 1);
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<uint8_t>> rows;
  for (const int64_t last : {7, 8, 9}) {
    ids.push_back(join(prompt, {last, last}));
    rows.emplace_back(2 * ids.back().size(), uint8_t{5});
  }
  rows[1][2 * 10 + 1] = 4;  // token 10 of the second document
  std::vector<const std::vector<int64_t>*> documents;
  std::vector<const std::vector<uint8_t>*> bytes;
  for (std::size_t d = 0; d < ids.size(); ++d) {
    documents.push_back(&ids[d]);
    bytes.push_back(&rows[d]);
  }
  CHECK(sp::build_prefix_tree(documents).forest.num_tokens() == 40 + 3 * 2);
  const auto tree = sp::build_prefix_tree(documents, bytes);
  // The first and the third share 40 tokens, the second shares 10 with them.
  CHECK(tree.forest.num_tokens() == 10 + 30 + 2 * 2 + 32);
  std::vector<std::vector<uint8_t>> packed(tree.forest.num_tokens());
  for (std::size_t d = 0; d < ids.size(); ++d) {
    const auto places = sp::packed_indices_of(tree, static_cast<int64_t>(d));
    REQUIRE(places.size() == ids[d].size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::vector<uint8_t> row{rows[d][2 * i], rows[d][2 * i + 1]};
      REQUIRE((packed[places[i]].empty() || packed[places[i]] == row));
      packed[places[i]] = row;
    }
  }
}

TEST_CASE("a rank without tokens knows whether the documents have a field") {
  std::vector<sp::Document> documents(1);
  documents[0].ids = {3, 4, 5};
  const sp::CollatorOptions options{{4, 2, 8}, 1000, {}};
  const sp::MeshShape two_replicas{2, 1, 1};
  for (const std::size_t bytes : {0, 2}) {
    documents[0].fields.clear();
    if (bytes > 0) {
      documents[0].fields = {{"two", sp::FieldType::kUInt8, 2, {7, 7, 7, 7, 7, 7}}};
    }
    for (int64_t rank = 0; rank < 2; ++rank) {
      const auto batches = sp::collate(documents, sp::Mesh(two_replicas, rank), options);
      REQUIRE(batches.size() == 1);
      CAPTURE(bytes, rank);
      REQUIRE(batches[0].fields.contains("two") == (bytes > 0));
      if (bytes > 0) {
        CHECK(batches[0].fields.at("two").sizes() == at::IntArrayRef({rank == 0 ? 3 : 0, 2}));
      }
    }
  }
}

TEST_CASE("every token's fields are on the rank that has the token, each in its dtype") {
  const std::vector<int64_t> prompt(20, 1);
  std::vector<sp::Document> documents(3);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    documents[d].ids = join(prompt, {static_cast<int64_t>(5 + d), 6});
    documents[d].fields = {{"twice", sp::FieldType::kUInt8}, {"places", sp::FieldType::kInt16, 2}};
    for (std::size_t i = 0; i < documents[d].ids.size(); ++i) {
      // Twice the id, and the place with 256 times it: tokens of one id and place have one value.
      const auto place = static_cast<uint8_t>(i);
      documents[d].fields[0].bytes.push_back(static_cast<uint8_t>(2 * documents[d].ids[i]));
      documents[d].fields[1].bytes.insert(documents[d].fields[1].bytes.end(), {place, 0, 0, place});
    }
  }
  const sp::CollatorOptions options{{4, 2, 8}, 1000, {}};
  int64_t tokens = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (const auto& batch : sp::collate(documents, sp::Mesh({1, 2, 2}, rank), options)) {
      const at::Tensor twice = batch.fields.at("twice"), places = batch.fields.at("places");
      REQUIRE(twice.sizes() == at::IntArrayRef({batch.ids_s.numel(), 1}));
      REQUIRE(places.sizes() == at::IntArrayRef({batch.ids_s.numel(), 2}));
      CHECK(twice.select(1, 0).equal((2 * batch.ids_s).to(at::kByte)));
      CHECK(places.select(1, 0).equal(batch.positions_s.to(at::kShort)));
      CHECK(places.select(1, 1).equal((256 * batch.positions_s).to(at::kShort)));
      tokens += batch.ids_s.numel();
    }
  }
  CHECK(tokens == 20 + 3 * 2);
  documents[1].fields[1].bytes.pop_back();
  CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 2, 2}, 0), options),
                    Catch::Contains("document 1 has 87 bytes in field places of its 22 tokens"));
  documents[1].fields.pop_back();
  CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 2, 2}, 0), options),
                    Catch::Contains("document 1 has twice of 1 bytes a token, the documents before "
                                    "it have twice of 1 bytes a token, places of 4"));
}

TEST_CASE("families keep to their budget and hold every document once") {
  std::vector<std::vector<int64_t>> ids;
  for (int64_t d = 0; d < 12; ++d) {
    ids.push_back(
        std::vector<int64_t>(30, d / 6));  // two prompts of 30 tokens, six completions of 10 each
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

TEST_CASE("documents of different kinds share no micro-batch, on any data-parallel rank") {
  auto documents = make_documents({5, 9, 3, 7, 2, 6, 8, 4});
  const uint64_t of_one_kind = sp::plan_micro_batches(documents, 2, 20, true).hash();
  for (std::size_t d = 0; d < documents.size(); ++d) {
    documents[d].kind = d % 3 == 0 ? 4 : 1;
  }
  const sp::PackingPlan plan = sp::plan_micro_batches(documents, 2, 20, true);
  CHECK(plan.hash() != of_one_kind);
  REQUIRE(std::ssize(plan.kinds) == plan.num_micro_batches());
  std::vector<int64_t> found;
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (std::size_t m = 0; m < plan.kinds.size(); ++m) {
      for (const int64_t d : plan.micro_batches[rank][m]) {
        CHECK(documents[d].kind == plan.kind(m));
        found.push_back(d);
      }
    }
    const auto batches =
        sp::collate(documents, plan, sp::Mesh({2, 1, 1}, rank), {{4, 2, 8}, 20, {}});
    for (std::size_t m = 0; m < batches.size(); ++m) {
      CHECK(batches[m].kind == plan.kinds[m]);
    }
  }
  std::ranges::sort(found);
  CHECK(found == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("one group on two data-parallel ranks is divided, not left to one of them") {
  std::vector<sp::Document> group;
  for (int64_t d = 0; d < 8; ++d) {
    std::vector<int64_t> ids(20, 1);
    ids.insert(ids.end(), 20, 10 + d);
    group.push_back({ids, {}});
  }
  const auto plan = sp::plan_micro_batches(group, 2, 10000, /*shared_prefix=*/true);
  REQUIRE(plan.num_micro_batches() == 1);
  CHECK(plan.micro_batches[0][0].size() == 4);
  CHECK(plan.micro_batches[1][0].size() == 4);
}

TEST_CASE("micro-batches come in the order of their work, the most first, on every rank") {
  std::vector<sp::Document> documents;
  // Bins of 60 tokens on each of two ranks: one long document, or several short ones.
  for (const int64_t length : {20, 60, 20, 58, 20, 59, 20, 10, 10, 18, 18}) {
    documents.push_back({std::vector<int64_t>(length, 1 + length % 7), {}});
  }
  const auto work_of = [&](const std::vector<int64_t>& chosen, const sp::WorkRates& rates) {
    double work = 0.0;
    for (const int64_t d : chosen) {
      const auto n = static_cast<double>(documents[d].ids.size());
      work += rates.token * n;
      for (const auto& [window, rate] : rates.pair) {
        double pairs = 0.0;
        for (int64_t i = 0; i < static_cast<int64_t>(n); ++i) {
          pairs += static_cast<double>(window == 0 ? i + 1 : std::min(window, i + 1));
        }
        work += rate * pairs;
      }
    }
    return work;
  };
  const auto unsorted = sp::plan_micro_batches(documents, 2, 60, /*shared_prefix=*/false, {0, {}});
  for (const sp::WorkRates& rates :
       {sp::WorkRates{1.0, {{0, 0.5}}}, sp::WorkRates{1.0, {{4, 2.0}}}, sp::WorkRates{}}) {
    const auto plan = sp::plan_micro_batches(documents, 2, 60, false, rates);
    REQUIRE(plan.num_micro_batches() >= 3);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto& sorted = plan.micro_batches[rank];
      CHECK(
          std::is_permutation(sorted.begin(), sorted.end(), unsorted.micro_batches[rank].begin()));
      for (std::size_t m = 1; m < sorted.size(); ++m) {
        CHECK(work_of(sorted[m - 1], rates) >= work_of(sorted[m], rates));
      }
    }
  }
}

TEST_CASE(
    "entries of documents that share tokens stay with their tokens, and the saving is counted") {
  std::vector<sp::Document> documents;
  std::vector<int64_t> source_ids;  // of all entries
  for (int64_t d = 0; d < 5; ++d) {
    sp::Document document;
    for (int64_t i = 0; i < 24; ++i) {
      document.ids.push_back(i < 20 ? i : 100 * d + i);
    }
    for (const int64_t source : {19, 20, 22}) {
      document.entries.add(source, document.ids[source + 1]);
      source_ids.push_back(document.ids[source]);
    }
    documents.push_back(std::move(document));
  }
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 1, 3}}) {
    std::vector<int> seen(15, 0);
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      const auto batches = sp::collate(documents, sp::Mesh(shape, rank), {{4, 2, 8}, 1000, {}});
      REQUIRE(batches.size() == 1);
      const sp::MicroBatch& batch = batches[0];
      CHECK(batch.saving.raw_tokens == 120);
      CHECK(batch.saving.unique_tokens == 20 + 5 * 4);
      CHECK(batch.plan(0).raw_pairs == 5 * 24 * 25 / 2);
      CHECK(batch.plan(0).unique_pairs == 20 * 21 / 2 + 5 * (21 + 22 + 23 + 24));
      const at::Tensor token = batch.ids_s.index_select(0, batch.source_n);
      for (int64_t n = 0; n < batch.num_entries(); ++n) {
        REQUIRE(token[n].item<int64_t>() == source_ids[batch.entry_index[n]]);
        ++seen[batch.entry_index[n]];
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE("a token may carry several entries") {
  sp::Document document{{5, 6}, {}};
  for (const int64_t target : {7, 8, 9}) {
    document.entries.add(0, target);
  }
  const auto batches =
      sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, {}});
  REQUIRE(batches.size() == 1);
  CHECK(at::equal(batches[0].target_n, at::tensor(std::vector<int64_t>{7, 8, 9}, at::kLong)));
  CHECK(at::equal(batches[0].source_n, at::zeros({3}, at::kLong)));
}

TEST_CASE("no documents at all still make one micro-batch on every rank") {
  const auto batches = sp::collate({}, sp::Mesh({2, 2, 1}, 3), {{1, 1, 4}, 8, {}});
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].ids_s.numel() == 0);
}

TEST_CASE("a plan for another number of data-parallel ranks is refused") {
  const std::vector<sp::Document> documents{{{5, 6}, {}}};
  const auto packing = sp::plan_micro_batches(documents, /*dp_size=*/1, 8, false);
  CHECK_THROWS_WITH(sp::collate(documents, packing, sp::Mesh({2, 1, 1}, 1), {{1, 1, 4}, 8, {}}),
                    Catch::Contains("a plan for 1 data-parallel ranks, the mesh has 2"));
}

TEST_CASE("entries that do not fit their document are refused") {
  sp::Document document{{5, 6}, {}};
  document.entries.add(2, 7);
  const std::vector<sp::Document> documents{document};
  CHECK_THROWS_WITH(sp::collate(documents, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, {}}),
                    Catch::Contains("document 0 has a loss entry at token 2 of 2"));
  document.entries.target.clear();
  CHECK_THROWS_WITH(
      sp::collate(std::vector<sp::Document>{document}, sp::Mesh({1, 1, 1}, 0), {{1, 1, 4}, 8, {}}),
      Catch::Contains("column target has 0 values"));
}

TEST_CASE("a document longer than the model's exact positions is refused on every rank") {
  std::vector<sp::Document> documents{{{1, 2, 3, 4}, {}}, {{1, 2, 3, 4, 5}, {}}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const sp::Mesh mesh({1, 2, 1}, rank);
    CHECK_THROWS_WITH(sp::collate(documents, mesh, {{2, 2, 4}, 8, {}, 4}),
                      Catch::Contains("document 1 has 5 tokens") && Catch::Contains("up to 4"));
    CHECK_NOTHROW(sp::collate(documents, mesh, {{2, 2, 4}, 8, {}, 5}));
  }
}

TEST_CASE("tensors and scalars are summed, disagreement is an error on every rank") {
  test::run_ranks({2, 1, 2}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    at::Tensor first = at::full({3}, mesh.rank() + 1.0), second = at::full({1}, 1.0, at::kDouble);
    auto& world = *comms.tensors(sp::axes::kLoss);
    const auto summing_first = world.start_all_reduce_sum(first, "first");
    const auto summing_second = world.start_all_reduce_sum(second, "second");
    summing_second->wait();
    summing_first->wait();
    TORCH_CHECK(first[2].item<float>() == 10.0f && second.item<double>() == 4.0);
    TORCH_CHECK(sp::sum_scalars({1.0, mesh.rank() * 1.0}, *comms.tensors(sp::axes::kLoss))[1] ==
                6.0);
    TORCH_CHECK(sp::max_scalars({mesh.rank() * 1.0}, *comms.tensors(sp::axes::kLoss))[0] == 3.0);
    sp::check_agreement(42, "plan", *comms.tensors(sp::axes::kLoss));
    bool thrown = false;
    try {
      sp::check_agreement(mesh.rank() == 2 ? 43 : 42, "plan", *comms.tensors(sp::axes::kLoss));
    } catch (const c10::Error&) {
      thrown = true;
    }
    TORCH_CHECK(thrown);
  });
}
