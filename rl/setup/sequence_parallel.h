// From the configuration's words to sequence parallelism's own.
#pragma once

#include <string>
#include <vector>

#include "rl/config/config.h"
#include "sp/batch/collator.h"

namespace ringside::rl {

// How micro-batches are laid out: sp.ring_impl, heads_k_stride, placement, shared_prefix.
sp::SequenceOptions sequence_options(const SpConfig& config);

// The factorings of the sequence-parallel ranks for a full micro-batch of the longest samples,
// fastest first as the plans predict, a line each, with the one in use marked. Empty where there is
// one rank or no model.path. Reads model.path/config.json; throws std::invalid_argument on heads
// that do not fit.
std::vector<std::string> describe_sequence_parallel(const Config& config);

// Factors parallel.context_parallel_size into ulysses_parallel_size and ringattn_parallel_size and
// sets it to 0; a configuration without it stays as it is. `auto` takes the factoring that the
// plans of a full micro-batch of the longest samples predict to be fastest. Reads
// model.path/config.json for the heads; throws std::invalid_argument when no factoring fits them.
void factor_context_parallel(Config& config);

}  // namespace ringside::rl
