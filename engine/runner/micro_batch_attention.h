// Attention of a micro-batch over the mesh.
#pragma once

#include <memory>

#include "engine/models/decoder.h"
#include "engine/nn/attention_backend.h"
#include "engine/runner/device_batches.h"
#include "sp/mesh/process_groups.h"

namespace ringside::engine {

// For all layers of the decoder and both passes. Only plain weights can be projected by parts, so
// with adapters asynchronous Ulysses becomes synchronous; in models with gated delta nets too.
std::unique_ptr<AttentionBackend> micro_batch_attention(const sp::MicroBatch& batch,
                                                        const DeviceBatch& on_device,
                                                        const sp::ProcessGroups& groups,
                                                        const Decoder& decoder);

}  // namespace ringside::engine
