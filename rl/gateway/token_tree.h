// The tokens of one rollout whose requests may fork: each token once, in the branches that
// rollout_bridge/PROTOCOL.md ("Forked conversations") describes. Torch-free.
//
// A sequence is named by its end: it ends with the token of index end - 1, which continues the
// sequence before it. End 0 is the empty sequence.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// What a request sampled.
struct SampledTokens {
  std::vector<int64_t> ids;     // at least one
  std::vector<float> logprobs;  // one per id, of the distribution that was sampled from
  int64_t version = -1;         // of the weights
  int64_t trainer_term = -1;    // of the version
};

// Thread safety: none.
class TokenTree {
 public:
  struct Match {
    int64_t end;     // of a recorded sequence
    int64_t tokens;  // how many of the ids it covers
  };

  // The longest recorded continuation of the sequence `end` that `ids` begin with. It may end
  // inside a branch.
  Match match(int64_t end, std::span<const int64_t> ids) const;

  // Adds what was sampled behind the sequence `end` and the context after it. Context that is
  // recorded there already is not added again; sampled tokens always are, because each sample
  // counts. Returns the end of the new sequence.
  // Throws: std::invalid_argument without sampled ids, for an end that does not exist, for a
  // sequence that shares no token with the first one, and beyond kMaxBranches.
  int64_t add(int64_t end, std::span<const int64_t> context, const SampledTokens& sampled);

  // The ids of a sequence, from its first token.
  std::vector<int64_t> sequence(int64_t end) const;

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int64_t turns() const { return static_cast<int64_t>(turns_.size()); }

  // Sets prompt_ids, which is what all sequences begin with before anything was sampled, and
  // completion_ids, logprobs, loss_mask, versions, turn_offsets and branches. loss_mask is 1 for
  // sampled tokens. Context has the version of what was sampled after it, and log-prob 0.
  // trainer_term is that of the first sampled token.
  // Throws: std::invalid_argument when nothing was added.
  void write(bridge::Rollout& rollout) const;

  // Branches of one rollout besides the first, as the protocol allows.
  static constexpr int64_t kMaxBranches = 1024;

 private:
  struct Branch {
    int64_t begin;
    int64_t context_end;
  };

  std::size_t branch_of(int64_t token) const;
  int64_t prompt_tokens() const;

  std::vector<int64_t> ids_;
  std::vector<float> logprobs_;
  std::vector<uint8_t> is_sampled_;
  std::vector<int64_t> versions_;
  std::vector<int64_t> turns_;  // where sampled tokens begin
  int64_t trainer_term_ = -1;
  std::vector<Branch> branches_;
  std::multimap<int64_t, int64_t> forks_;  // context_end and begin of all branches but the first
};

}  // namespace ringside::rl
