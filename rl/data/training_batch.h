// From a step's rollouts to the documents of its optimizer steps: advantages, loss weights and log-probs attached to the
// tokens that they belong to. Pure functions; every rank computes the same. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"
#include "rollout_bridge/schema.h"
#include "sp/collator/document.h"

namespace ringside::rl {

// The sum of a rollout's named rewards.
double total_reward(const bridge::Rollout& rollout);

// One list of documents per optimizer step of one pass over the step's samples: mini-batches of whole rollouts in order,
// sizes differing by at most one. Rollouts come in whole groups. Each masked-in completion token is a loss entry whose
// source is the token before it; entry.sample is the rollout's index. With algorithm.mask_truncated, completions that
// hit the length limit carry no entry. Throws std::invalid_argument naming the rollout: sampling settings whose
// log-probs the trainer cannot reproduce (top_p, top_k), groups that are not whole.
std::vector<std::vector<sp::Document>> make_mini_batches(std::span<const bridge::Rollout> rollouts,
                                                         const Config& config);

// A document whose loss entries are all targets from `first_target` on, each weighted `weight`.
sp::Document make_scored_document(std::vector<int64_t> ids, int64_t first_target, double weight);

}  // namespace ringside::rl
