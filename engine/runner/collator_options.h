// What the collator needs to know of a model.
#pragma once

#include <cstdint>

#include "engine/models/model_config.h"
#include "sp/batch/collator.h"

namespace ringside::engine {

sp::HeadShape head_shape(const ModelConfig& config);

// Heads, windows and longest document of the model, with the caller's token budget and layout.
sp::CollatorOptions collator_options(const ModelConfig& config, int64_t tokens_per_micro_batch,
                                     const sp::SequenceOptions& sequence);

}  // namespace ringside::engine
