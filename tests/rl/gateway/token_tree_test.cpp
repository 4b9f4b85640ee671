// Guards the tokens of a rollout that forks: a path that loses or changes tokens, a sample counted
// twice or not at all, a context that is stored again.
#include "rl/gateway/token_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "rollout_bridge/protocol/branches.h"

namespace ringside::rl {
namespace {

using Ids = std::vector<int64_t>;

SampledTokens sampled(Ids ids, int64_t version = 0) {
  SampledTokens tokens{std::move(ids), {}, version, /*trainer_term=*/1};
  for (const int64_t id : tokens.ids) {
    tokens.logprobs.push_back(-static_cast<float>(id) / 8);
  }
  return tokens;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What the trainer reads.
bridge::Rollout written(const TokenTree& tree) {
  bridge::Rollout rollout;
  rollout.rollout_id = "r";
  rollout.group_id = 0;
  rollout.group_size = 1;
  rollout.sample_index = 0;
  rollout.rewards = {{"reward", 1.0}};
  tree.write(rollout);
  const bridge::Status status = bridge::validate(rollout);
  INFO((status ? "" : status.error().detail));
  REQUIRE(status);
  return rollout;
}

// All sequences of the rollout, each with its last token's places of sampled tokens.
std::multiset<Ids> paths_of(const bridge::Rollout& rollout) {
  std::multiset<Ids> paths;
  for (const bridge::BranchPath& branch : bridge::branch_paths(rollout)) {
    Ids path = rollout.prompt_ids;
    for (const bridge::TokenRange& range : branch.ranges) {
      path.insert(path.end(), rollout.completion_ids.begin() + range.begin,
                  rollout.completion_ids.begin() + range.end);
    }
    paths.insert(path);
  }
  return paths;
}

TEST_CASE("a conversation of several turns is one branch behind its first context") {
  TokenTree tree;
  const int64_t first = tree.add(0, Ids{1, 2, 3}, sampled({4, 5}, 7));
  tree.add(first, Ids{6}, sampled({7}, 8));
  const bridge::Rollout rollout = written(tree);
  CHECK(rollout.prompt_ids == Ids{1, 2, 3});
  CHECK(rollout.completion_ids == Ids{4, 5, 6, 7});
  CHECK(rollout.loss_mask == std::vector<uint8_t>{1, 1, 0, 1});
  CHECK(rollout.logprobs == std::vector<float>{-0.5F, -0.625F, 0, -0.875F});
  CHECK(rollout.turn_offsets == std::vector<int32_t>{0, 3});
  CHECK(rollout.versions == std::vector<bridge::VersionSpan>{{7, 0, 2}, {8, 2, 4}});
  CHECK(rollout.trainer_term == 1);
  CHECK(rollout.branches.empty());
}

TEST_CASE("a retry of a request is a branch of sampled tokens alone") {
  TokenTree tree;
  tree.add(0, Ids{1, 2}, sampled({3, 4}));
  tree.add(0, Ids{1, 2}, sampled({3, 5}));  // a sample that begins alike counts by itself
  const bridge::Rollout rollout = written(tree);
  CHECK(rollout.prompt_ids == Ids{1, 2});
  CHECK(rollout.completion_ids == Ids{3, 4, 3, 5});
  CHECK(rollout.branches == std::vector<bridge::Branch>{{2, 0}});
  CHECK(paths_of(rollout) == std::multiset<Ids>{{1, 2, 3, 4}, {1, 2, 3, 5}});
}

TEST_CASE("a rewritten history branches at its last common token, inside of a sample too") {
  TokenTree tree;
  tree.add(0, Ids{1, 2, 3}, sampled({4, 5, 6}));
  tree.add(0, Ids{1, 2, 3, 4, 9}, sampled({8}));
  tree.add(0, Ids{1, 7}, sampled({8}));  // another prompt, behind the first token
  const bridge::Rollout rollout = written(tree);
  CHECK(rollout.prompt_ids == Ids{1});
  CHECK(rollout.completion_ids == Ids{2, 3, 4, 5, 6, 9, 8, 7, 8});
  CHECK(rollout.branches == std::vector<bridge::Branch>{{5, 3}, {7, 0}});
  CHECK(rollout.loss_mask == std::vector<uint8_t>{0, 0, 1, 1, 1, 0, 1, 0, 1});
  CHECK(paths_of(rollout) == std::multiset<Ids>{{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 9, 8}, {1, 7, 8}});
}

TEST_CASE("a context that only a later branch has is shared with it") {
  TokenTree tree;
  tree.add(0, Ids{1, 2}, sampled({3}));
  tree.add(0, Ids{1, 5, 6}, sampled({7}));
  tree.add(0, Ids{1, 5, 6, 8}, sampled({9}));
  const bridge::Rollout rollout = written(tree);
  CHECK(rollout.completion_ids == Ids{2, 3, 5, 6, 7, 8, 9});
  CHECK(rollout.branches == std::vector<bridge::Branch>{{2, 0}, {5, 4}});
}

TEST_CASE("a token tree refuses what no rollout can hold") {
  TokenTree tree;
  CHECK_THROWS_WITH(tree.add(0, Ids{1}, sampled({})), Catch::Contains("0 sampled tokens"));
  tree.add(0, Ids{1}, sampled({2}));
  CHECK_THROWS_WITH(tree.add(0, Ids{5}, sampled({2})), Catch::Contains("another token"));
  CHECK_THROWS_WITH(tree.add(9, Ids{5}, sampled({2})), Catch::Contains("ends at 9"));
  for (int64_t fork = 0; fork < TokenTree::kMaxBranches; ++fork) {
    tree.add(0, Ids{1}, sampled({2}));
  }
  CHECK_THROWS_WITH(tree.add(0, Ids{1}, sampled({2})), Catch::Contains("1024 times"));
  bridge::Rollout rollout;
  CHECK_THROWS_AS(TokenTree().write(rollout), std::invalid_argument);
}

// Oracle: the sequences of all requests, kept one by one.
TEST_CASE("200 turns with forks, retries and compaction keep every sequence and share the rest") {
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const auto ids = [&](int64_t count) {
      Ids all;
      for (int64_t i = 0; i < count; ++i) {
        all.push_back(10 + below(4));  // few, so that unlike contexts begin alike
      }
      return all;
    };
    TokenTree tree;
    const Ids system{1, 2, 3, 4};
    struct Turn {
      Ids sequence;
      int64_t end;
    };
    std::vector<Turn> turns;
    int64_t untangled = 0, samples = 0;
    for (int turn = 0; turn < 200; ++turn) {
      const SampledTokens said = sampled(ids(1 + below(5)), turn / 50);
      const int64_t kind = turns.empty() ? 0 : below(10);
      Ids sequence, context;
      int64_t from = 0;
      if (kind == 0) {  // compaction, or a sub-task: a context of its own
        context = sequence = joined(system, ids(1 + below(6)));
      } else {  // the newest turn goes on, or an older one is retried
        const Turn& before = kind < 8 ? turns.back() : turns[below(std::ssize(turns))];
        context = ids(below(4));
        sequence = joined(before.sequence, context);
        from = before.end;
      }
      sequence = joined(sequence, said.ids);
      const int64_t end = tree.add(from, context, said);
      CHECK(tree.sequence(end) == sequence);
      untangled += std::ssize(sequence);
      samples += std::ssize(said.ids);
      turns.push_back({std::move(sequence), end});
    }
    for (const Turn& turn : turns) {
      CHECK(tree.sequence(turn.end) == turn.sequence);
    }
    const bridge::Rollout rollout = written(tree);
    CHECK(std::count(rollout.loss_mask.begin(), rollout.loss_mask.end(), 1) == samples);
    const std::multiset<Ids> paths = paths_of(rollout);
    for (const Turn& turn : turns) {  // each is the beginning of a path
      CHECK(std::any_of(paths.begin(), paths.end(), [&](const Ids& path) {
        return path.size() >= turn.sequence.size() &&
               std::equal(turn.sequence.begin(), turn.sequence.end(), path.begin());
      }));
    }
    CHECK(tree.size() * 4 < untangled);
  }
}

}  // namespace
}  // namespace ringside::rl
