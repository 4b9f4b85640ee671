// Branches of a forked conversation: the token sequences of one sample and the beginnings they
// share.
//
// A sample whose context was rewritten, or that called sub-agents, holds several token sequences.
// Each is one branch. Torch-free.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Completion tokens [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TokenRange&) const = default;
};

// One branch: the sequence prompt_ids, then the completion tokens of `ranges` in order. The last
// range holds the tokens that this branch sampled. The ranges before it are its context and belong
// to earlier branches. No range is empty, except the only range of an empty completion.
struct BranchPath {
  std::vector<TokenRange> ranges;
  const TokenRange& own() const { return ranges.back(); }
};

// All branches in order, the first beginning at 0: branches.size() + 1 of them. Their last ranges
// cover [0, C) without overlap.
// Throws: std::invalid_argument when `branches` breaks the rules at Rollout.
std::vector<BranchPath> branch_paths(const Rollout& rollout);

}  // namespace ringside::bridge
