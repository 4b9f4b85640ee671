// The training batch of a step: its rollouts as the documents of its optimizer steps, and the
// columns of their loss tokens. Pure functions; every rank computes the same. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"
#include "rollout_bridge/protocol/schema.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// One optimizer step's documents: whole rollouts, each a document, or one document a branch where
// its conversation forked.
struct MiniBatch {
  std::vector<sp::Document>
      documents;  // entries.sample = index in here, so that a ratio of a sequence is a document's
  int64_t first_token =
      0;  // of its loss tokens in the step's columns: entry (document, i) follows in order
  int64_t loss_tokens = 0;
};

struct StepBatch {
  std::vector<MiniBatch> mini_batches;  // of one pass over the step's samples
  StepColumns
      columns;  // begin, rollout, temperature, weight and, for estimator given, given are filled
  SampleRewards rewards;  // weighted by name, shaped in total
};

// Mini-batches of whole rollouts in order, sizes differing by at most one. Rollouts come in whole
// groups. Each masked-in completion token is a loss entry whose source is the token before it in
// its branch; columns.weight holds the aggregation over the mini-batch. Rollouts that failed carry
// no entry and count in no denominator. With algorithm.mask_truncated, completions that hit the
// length limit carry no entry; with dynamic_sampling drop or refill, groups whose rewards are all
// equal carry none and count in no denominator. Throws std::invalid_argument naming the rollout:
// sampling settings whose log-probs the trainer cannot reproduce (top_p, top_k), groups that are
// not whole, branches that do not fit, no advantages for estimator given, or nothing but them for
// another.
StepBatch make_step_batch(std::span<const bridge::Rollout> rollouts, const Config& config);

// A document whose loss entries are all targets from `first_target` on.
sp::Document make_scored_document(std::vector<int64_t> ids, int64_t first_target);

}  // namespace ringside::rl
