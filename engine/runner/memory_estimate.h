// Device memory of a training pass, predicted from shapes before anything runs.
#pragma once

#include <cstdint>

#include "engine/device/compute_context.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// The largest micro-batch of a rank, and how the rank computes it.
struct PassShape {
  int64_t tokens = 0;        // of this rank
  int64_t share_tokens = 0;  // of its ring share; equal to `tokens` with one Ulysses rank
  int64_t entries = 0;       // loss entries of this rank
  int64_t query_heads = 0;   // of this rank, after the exchange of heads
  int64_t kv_heads = 0;
  int64_t logit_rows = 0;  // rows whose logits exist at once
  bool recompute_activations = false;
  bool accumulates = false;  // more than one micro-batch an optimizer step
};

// Bytes. Allocations below a few KiB, and scratch memory inside kernels, are left out.
struct MemoryEstimate {
  int64_t weights = 0;      // master weights
  int64_t optimizer = 0;    // both moments
  int64_t gradients = 0;    // those that exist when memory peaks
  int64_t activations = 0;  // saved by the forward for the backward
  int64_t transient = 0;    // of the backward's largest moment

  int64_t peak() const { return weights + optimizer + gradients + activations + transient; }
};

// The peak is in the backward, at one of two moments: while the head's gradient is computed, or in
// the MLP of the last layer. Transfers of keys and values between ring ranks are not part of it.
// Thread safety: pure.
MemoryEstimate estimate_memory(const ModelConfig& config, const ComputeContext& context,
                               const PassShape& shape);

}  // namespace ringside::engine
