// What the collator needs to know of a model.
#pragma once

#include <cstdint>

#include "engine/layers/model_config.h"
#include "engine/params/tensor_cut.h"
#include "sp/batch/collator.h"

namespace ringside::engine {

// The attention heads of the model's layers, with this tensor rank's part.
sp::HeadShape head_shape(const ModelConfig& config, const TensorPlace& tensor = {});

// Most Ulysses ranks: each has a head of every token mixer of which its tensor rank has any.
int64_t most_ulysses_ranks(const ModelConfig& config, int64_t tensor_ranks = 1);

// FLOPs of a forward over all layers, without the head: of a token by the weights that it uses, of
// a query-key pair by the heads that attend. Of the whole model, the same on every rank.
sp::WorkRates work_rates(const ModelConfig& config);

// Heads of this tensor rank, windows, work and longest document of the model, with the caller's
// token budget and layout.
sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence,
                                     const TensorPlace& tensor = {});

}  // namespace ringside::engine
