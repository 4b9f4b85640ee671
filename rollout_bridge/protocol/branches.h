// What the tokens of a forked conversation continue. A sample whose context was rewritten, or that
// handed work to sub-agents, holds several token sequences that share beginnings; each is one
// branch. Torch-free, pure, thread-safe.
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
// range is the branch's own tokens, the ones it sampled; those before it are its context and belong
// to earlier branches. No range is empty but the only one of an empty completion.
struct BranchPath {
  std::vector<TokenRange> ranges;
  const TokenRange& own() const { return ranges.back(); }
};

// Every branch in order, the first beginning at 0: branches.size() + 1 of them. The own ranges
// cover [0, C) without overlap. Throws std::invalid_argument when `branches` breaks the rules at
// Rollout.
std::vector<BranchPath> branch_paths(const Rollout& rollout);

}  // namespace ringside::bridge
