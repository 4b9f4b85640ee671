// What the collator needs to know of a model.
#pragma once

#include <cstdint>

#include "engine/layers/model_config.h"
#include "sp/batch/collator.h"

namespace ringside::engine {

// The attention heads of the model's layers.
sp::HeadShape head_shape(const ModelConfig& config);

// Most Ulysses ranks: each has a head of every token mixer.
int64_t most_ulysses_ranks(const ModelConfig& config);

// Heads, windows and longest document of the model, with the caller's token budget and layout.
sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence);

}  // namespace ringside::engine
