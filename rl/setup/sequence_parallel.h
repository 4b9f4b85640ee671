// Sequence-parallel options from the configuration.
#pragma once

#include <string>
#include <vector>

#include "engine/layers/model_config.h"
#include "rl/config/config.h"
#include "sp/batch/collator.h"
#include "sp/mesh/mesh.h"

namespace ringside::rl {

// Lengths of the documents of a full micro-batch, each as long as it may be: rollouts, or under
// supervised fine-tuning documents of data.max_length (0: of the whole micro-batch).
std::vector<int64_t> longest_documents(const Config& config);

// The mesh of parallel.*, with one replica while their number is open.
sp::MeshShape mesh_shape(const ParallelConfig& config);

// Layout options of micro-batches: sp.ring_impl, ring_backward, heads_k_stride, placement,
// shared_prefix, async_ulysses.
sp::SequenceOptions sequence_options(const SpConfig& config);

// Descriptions of the possible factorings of the sequence-parallel ranks, one line each, fastest
// first as the plans predict for a full micro-batch of the longest samples on this device. The one
// in use is marked. Then advice, one line each, where the predictions speak against the
// configuration: sequences too short to share, axes that cross nodes, the asynchronous form of
// Ulysses. Empty for one rank or without model.path. Reads model.path/config.json.
// Throws: as factor_context_parallel().
std::vector<std::string> describe_sequence_parallel(const Config& config);

// Factors parallel.context_parallel_size into ulysses_parallel_size and ringattn_parallel_size and
// sets it to 0, and settles sp.async_ulysses auto: true where the asynchronous form is predicted to
// hide more than 5 % of a layer's time. A configuration without both is unchanged. `auto` selects
// the factoring that the plans of a full micro-batch of the longest samples predict to be fastest.
// Reads model.path/config.json for the head counts. Throws: std::invalid_argument when no factoring
// fits them; what engine::load_model_config() and device_speeds() throw.
void factor_context_parallel(Config& config);

}  // namespace ringside::rl
