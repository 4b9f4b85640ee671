#include "rollout_bridge/protocol/branches.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::bridge {
namespace {

void check(const std::vector<Branch>& branches, int64_t length) {
  int64_t previous = 0;
  for (const Branch& b : branches) {
    if (b.begin <= previous || b.begin >= length || b.context_end < 0 || b.context_end > b.begin) {
      throw std::invalid_argument("branch {begin " + std::to_string(b.begin) + ", context_end " +
                                  std::to_string(b.context_end) + "} after begin " +
                                  std::to_string(previous) + " of " + std::to_string(length) +
                                  " completion tokens");
    }
    previous = b.begin;
  }
}

// The token ranges before completion position `context_end` >= 1, along the branch of the token
// before it.
std::vector<TokenRange> context(const std::vector<BranchPath>& earlier, int64_t context_end) {
  const auto after = std::upper_bound(
      earlier.begin(), earlier.end(), context_end - 1,
      [](int64_t token, const BranchPath& path) { return token < path.own().begin; });
  std::vector<TokenRange> ranges = std::prev(after)->ranges;
  ranges.back().end = context_end;
  return ranges;
}

}  // namespace

std::vector<BranchPath> branch_paths(const Rollout& rollout) {
  const auto& branches = rollout.branches;
  const auto length = static_cast<int64_t>(rollout.completion_ids.size());
  check(branches, length);
  std::vector<BranchPath> paths;
  for (size_t i = 0; i <= branches.size(); ++i) {
    const Branch branch = i == 0 ? Branch{} : branches[i - 1];
    const int64_t end = i < branches.size() ? branches[i].begin : length;
    BranchPath path;
    if (branch.context_end > 0) {
      path.ranges = context(paths, branch.context_end);
    }
    path.ranges.push_back({branch.begin, end});
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace ringside::bridge
