// Memory of a training rank, predicted from shapes before anything runs.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/device/compute_context.h"
#include "engine/layers/model_config.h"
#include "engine/models/stage.h"
#include "engine/runner/memory_shapes.h"
#include "sp/plan/held_inputs.h"

namespace ringside::engine {

// Bytes at the moment of the peak, by part. Allocations below a few KiB, and scratch memory inside
// kernels, are left out.
struct MemoryEstimate {
  int64_t weights = 0;           // master weights, or the part of the weights that is kept
  int64_t moments = 0;           // both; of matrices that Muon updates one
  int64_t gradients = 0;         // accumulated ones, and those of the units under way
  int64_t gathered = 0;          // weights cast or gathered for use
  int64_t activations = 0;       // saved by the forward for the backward
  int64_t working = 0;           // of the layer whose backward or update runs; 0 at the head
  int64_t logits = 0;            // a chunk of them and the head's gradients; 0 in a layer
  int64_t communication = 0;     // keys and values under way, and their gradients
  int64_t host = 0;              // pinned memory; not part of peak()
  int64_t host_activations = 0;  // those of `host` that are activations

  // Of the device.
  int64_t peak() const {
    return weights + moments + gradients + gathered + activations + working + logits +
           communication;
  }
};

// The peak is in the backward: at the head, or in a layer. In the last one all activations exist,
// in the first one all gradients do; with an offload the second layer has the first one's
// activations beside its own. With Muon and few tokens it is in an update. Layers with delta nets
// need more than others. Throws: c10::Error on adapters that the model cannot have. Thread safety:
// pure.
MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape);

// The stages of a rank of a pipeline, and which inputs they hold when a backward runs.
struct RankStages {
  std::vector<Stage> stages;
  std::vector<sp::HeldInputs> moments;  // at least one
};

// The same of a pipeline's rank: the state of all its stages, and at the largest moment the
// backward of one stage beside the inputs that all hold. host_activations: of one input.
// Throws, thread safety: as estimate_memory().
MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               PassShape shape, const RankStages& rank);

}  // namespace ringside::engine
