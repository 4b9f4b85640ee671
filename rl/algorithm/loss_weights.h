// Weights of the loss tokens, fixed before any backward pass from the counts of the whole optimizer
// step. The loss is the weighted sum over all tokens, on whichever rank they are. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// The weight of each loss token of sequence i. loss_tokens[i] = n_i: loss tokens of sequence i of
// one optimizer step, over all ranks.
//   token_mean              1 / sum_i n_i           (DAPO, Yu et al. 2025)
//   token_sum               1                       (verl's token-sum)
//   seq_mean_token_mean     1 / (B n_i)             (GRPO, Shao et al. 2024)
//   seq_mean_token_sum      1 / B                   (verl; PipelineRL)
//   constant                1 / (B loss_divisor)    (Dr. GRPO, Liu et al. 2025)
//   micro_batch_token_mean  1                       (TRL's bnpo)
// For micro_batch_token_mean the weights are later divided by the loss tokens of each micro-batch
// and by the number of micro-batches; only this aggregation depends on the packing. B counts all
// sequences, including those without a loss token, whose weight is 0.
// Throws: std::invalid_argument for constant without a positive loss_divisor.
// Shapes: the result is as long as loss_tokens.
std::vector<double> loss_weights(std::span<const int64_t> loss_tokens, LossAggregation aggregation,
                                 double loss_divisor);

}  // namespace ringside::rl
