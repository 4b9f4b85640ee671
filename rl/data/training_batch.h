// Training batch of a step: its rollouts as the documents of its optimizer steps, and the columns
// of their loss tokens. Every rank computes the same. Pure functions. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"
#include "rl/data/image_fields.h"
#include "rollout_bridge/protocol/schema.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// Documents of one optimizer step: whole rollouts. A rollout is one document, or one document per
// branch if its conversation forked.
struct MiniBatch {
  // entries.sample = index into this vector, so that a per-sequence ratio is per document.
  std::vector<sp::Document> documents;
  // Index of its first loss token in the step's columns; entries follow in order of (document, i).
  int64_t first_token = 0;
  int64_t loss_tokens = 0;
};

struct StepBatch {
  std::vector<MiniBatch> mini_batches;  // of one pass over the step's samples
  // Filled columns: begin, rollout, temperature, weight, for estimator given, given, and with
  // algorithm.logprobs_over kept kept_sets.
  StepColumns columns;
  SampleRewards rewards;                // weighted by name, shaped in total
  std::vector<int64_t> documents_of{};  // [B] how many documents each sample is
  // [B] false: the sample failed, or its group's rewards are all equal and dropped; it counts in no
  // denominator
  std::vector<bool> trained{};
};

// Builds mini-batches of whole rollouts in order, with sizes that differ by at most one. Rollouts
// come in whole groups. Each completion token with loss_mask 1 is a loss entry whose source is the
// token before it in its branch. columns.weight holds the aggregation over the mini-batch. Rollouts
// that failed have no entry and count in no denominator. With algorithm.mask_truncated, completions
// that hit the length limit have no entry. With dynamic_sampling drop or refill, groups whose
// rewards are all equal have no entry and count in no denominator. With router_replay rollout the
// documents' field kRoutesField has the tokens' routes, with model.mtp_loss_coef their field
// kNextIdField the ids behind them. If a rollout has images, in its prompt or
// its conversation, all documents have the fields of add_image_fields(). The rollouts keep the
// rules of check_recorded() (rl/rollouts/rollout_admission.h), which every source of rollouts
// applies. Throws: std::invalid_argument naming the rollout, for branches that do not fit, a kept
// set that is not there, or routes unlike those of the other rollouts; when `images` or `kinds` are
// of other rollouts; as add_image_fields and document_images. greedy: the greedy rollout of each
// group, for estimator remax; a group whose greedy rollout failed has no baseline and is not
// trained on. kinds: of the rollouts' records, which their documents get; empty: 0.
StepBatch make_step_batch(std::span<const bridge::Rollout> rollouts, const Config& config,
                          const StepImages& images = {},
                          std::span<const bridge::Rollout> greedy = {},
                          std::span<const int64_t> kinds = {});

// The same step with other samples in its mini-batches: sample i of the result is sample order[i]
// of `batch`, columns and all, and weights hold for its own num_mini_batches mini-batches. A sample
// may stand in it several times, as different ones. Without rewards and without chosen tokens.
// order: samples of `batch`, at least num_mini_batches.
// Throws: std::invalid_argument for fewer, and for a sample that is not there.
StepBatch arranged_batch(const StepBatch& batch, std::span<const int64_t> order,
                         int64_t num_mini_batches, const Config& config);

// A document whose loss entries are the targets from index `first_target` on.
// Throws: std::invalid_argument unless 1 <= first_target <= ids.size().
sp::Document make_scored_document(std::vector<int64_t> ids, int64_t first_target);

}  // namespace ringside::rl
