// Guards what a forked conversation is trained on: a branch joined to the wrong context would be
// scored under tokens that its sampler never saw. The oracle walks from each token to the one
// before.
#include "rollout_bridge/protocol/branches.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge {
namespace {

Rollout forked(int64_t length, std::vector<Branch> branches) {
  Rollout r;
  r.completion_ids.assign(static_cast<std::size_t>(length), 7);
  r.branches = std::move(branches);
  return r;
}

std::vector<int64_t> tokens_of(const BranchPath& path) {
  std::vector<int64_t> out;
  for (const TokenRange& range : path.ranges) {
    for (int64_t t = range.begin; t < range.end; ++t) {
      out.push_back(t);
    }
  }
  return out;
}

// The tokens up to and including `token`, by the definition: each follows its predecessor.
std::vector<int64_t> walk_back(const Rollout& r, int64_t token) {
  std::vector<int64_t> out;
  while (token >= 0) {
    out.push_back(token);
    const auto fork = std::find_if(r.branches.begin(), r.branches.end(),
                                   [&](const Branch& b) { return b.begin == token; });
    token = fork == r.branches.end() ? token - 1 : fork->context_end - 1;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

TEST_CASE("the protocol's example has the four sequences it names", "[branches]") {
  const auto paths = branch_paths(forked(15, {{5, 3}, {9, 0}, {12, 7}}));
  REQUIRE(paths.size() == 4);
  CHECK(paths[0].ranges == std::vector<TokenRange>{{0, 5}});
  CHECK(paths[1].ranges == std::vector<TokenRange>{{0, 3}, {5, 9}});
  CHECK(paths[2].ranges == std::vector<TokenRange>{{9, 12}});
  CHECK(paths[3].ranges == std::vector<TokenRange>{{0, 3}, {5, 7}, {12, 15}});
  CHECK(paths[3].own() == TokenRange{12, 15});
}

TEST_CASE("without forks there is one sequence, also of nothing", "[branches]") {
  CHECK(branch_paths(forked(4, {}))[0].ranges == std::vector<TokenRange>{{0, 4}});
  const auto empty = branch_paths(forked(0, {}));
  REQUIRE(empty.size() == 1);
  CHECK(empty[0].ranges == std::vector<TokenRange>{{0, 0}});
}

TEST_CASE("random forks agree with a walk from token to token", "[branches]") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 rng(seed);
    const int64_t length = 2 + rng() % 40;
    std::vector<Branch> branches;
    for (int64_t begin = 1; begin < length; ++begin) {
      if (rng() % 4 == 0) {
        branches.push_back({begin, static_cast<int64_t>(rng() % (begin + 1))});
      }
    }
    const Rollout r = forked(length, branches);
    const auto paths = branch_paths(r);
    REQUIRE(paths.size() == branches.size() + 1);
    int64_t covered = 0;
    for (const BranchPath& path : paths) {
      CHECK(path.own().begin == covered);
      covered = path.own().end;
      REQUIRE(tokens_of(path) == walk_back(r, path.own().end - 1));
      for (const TokenRange& range : path.ranges) {
        CHECK(range.end > range.begin);
      }
    }
    CHECK(covered == length);
  }
}

TEST_CASE("forks that break the rules are refused", "[branches]") {
  for (const std::vector<Branch>& bad : std::vector<std::vector<Branch>>{
           {{0, 0}}, {{4, 0}}, {{2, 3}}, {{2, -1}}, {{2, 0}, {2, 0}}, {{3, 0}, {1, 0}}}) {
    CHECK_THROWS_AS(branch_paths(forked(4, bad)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace ringside::bridge
