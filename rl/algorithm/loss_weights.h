// The weight of every loss token, fixed before any backward from the counts of the whole optimizer
// step: the loss is the weighted sum over tokens, wherever they lie. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// loss_tokens[i]: loss tokens of sequence i of one optimizer step, over all ranks. Returns the
// weight that each loss token of sequence i carries:
//   token_mean              1 / sum_i n_i           (DAPO, Yu et al. 2025)
//   token_sum               1                       (verl's token-sum)
//   seq_mean_token_mean     1 / (B n_i)             (GRPO, Shao et al. 2024)
//   seq_mean_token_sum      1 / B                   (verl; PipelineRL)
//   constant                1 / (B loss_divisor)    (Dr. GRPO, Liu et al. 2025)
//   micro_batch_token_mean  1 here; whoever packs micro-batches divides by the loss tokens of each
//   and by their number, so
//                           that this alone depends on the packing (TRL's bnpo)
// B counts all sequences, also those without a loss token, whose weight is 0. Throws
// std::invalid_argument for constant without a positive loss_divisor.
std::vector<double> loss_weights(std::span<const int64_t> loss_tokens, LossAggregation aggregation,
                                 double loss_divisor);

}  // namespace ringside::rl
