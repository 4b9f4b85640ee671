// Shape of the vision tower of a multimodal model, as in vision_config of its config.json.
// Torch-free.
//
// A tower turns the patches of an image into rows of the language model: merge x merge patches
// become one token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/nn/rope_scaling.h"

namespace ringside::engine {

// What towers of one design share: norms, MLP, biases, learned positions, names of their tensors.
//   kQwen2Vl: LayerNorm, MLP with quick GELU.
//   kQwen2_5Vl: RMSNorm, SwiGLU with biases, attention within windows in most blocks.
//   kQwen3Vl: LayerNorm, MLP with tanh GELU, learned positions; Qwen3.5's is one without deepstack.
enum class VisionFamily { kQwen2Vl, kQwen2_5Vl, kQwen3Vl };

struct VisionConfig {
  VisionFamily family = VisionFamily::kQwen3Vl;
  int64_t depth = 0;  // blocks
  int64_t width = 0;  // of a patch's hidden state
  int64_t mlp = 0;    // intermediate size
  int64_t heads = 0;
  int64_t patch = 0;           // pixels a side
  int64_t temporal_patch = 2;  // frames of a patch
  int64_t merge = 2;           // patches a side of a token
  // Pixels a side of the windows that blocks attend within, but for full_blocks; 0: all attend to a
  // whole frame.
  int64_t window = 0;
  std::vector<int64_t> full_blocks = {};
  int64_t positions = 0;  // rows of the table of learned positions, a square number; 0: no table
  // Blocks, ascending, whose output is also merged and added behind the first layers of the
  // language model, one after the other.
  std::vector<int64_t> deepstack = {};
  RopeSections rope = {};  // of the language model

  // Numbers of a patch row.
  int64_t row_size() const { return 3 * temporal_patch * patch * patch; }
  int64_t head_dim() const { return width / heads; }
  // Patches of one token.
  int64_t patches_of_token() const { return merge * merge; }
  // Tokens a side of a window.
  int64_t window_tokens() const { return window / merge / patch; }
  bool is_windowed(int64_t block) const {
    return window > 0 && std::ranges::find(full_blocks, block) == full_blocks.end();
  }
  bool operator==(const VisionConfig&) const = default;
};

}  // namespace ringside::engine
