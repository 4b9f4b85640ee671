// Attention of patches: each attends to all patches of its frame, or of its window, in both
// directions.
//
// Shapes: p = patches, H = heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "engine/layers/vision_config.h"
#include "engine/nn/attention_backend.h"
#include "engine/vision/patch_tables.h"

namespace ringside::engine {

// Thread safety: attend() from any thread.
class PatchAttention final : public AttentionBackend {
 public:
  // tables: of the images that the q, k and v of a pass are of.
  PatchAttention(VisionConfig config, PatchTables tables)
      : config_(std::move(config)), tables_(std::move(tables)) {}

  // Not causal. spec.layer is the tower's block. LibTorch's attention, one call for a run of
  // segments of one length; no tensor of all pairs where LibTorch has a fused kernel.
  // Shapes: q, k, v [p, H, D] with a dense last dim; returns [p, H, D].
  // Throws: c10::Error on another number of patches.
  at::Tensor attend(const AttentionSpec& spec, const at::Tensor& q_pHD, const at::Tensor& k_pHD,
                    const at::Tensor& v_pHD) override;

 private:
  VisionConfig config_;
  PatchTables tables_;
};

}  // namespace ringside::engine
