// Vision towers small enough for finite differences, and images for them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "engine/models/decoder.h"
#include "tests/support/tiny_model.h"

namespace ringside::test {

inline constexpr engine::VisionFamily kVisionFamilies[] = {engine::VisionFamily::kQwen2Vl,
                                                           engine::VisionFamily::kQwen2_5Vl,
                                                           engine::VisionFamily::kQwen3Vl};

// tiny_config() with a tower of two blocks: windows of one token a side in the first block, or
// learned positions and deepstack behind both blocks, where the family has them.
inline engine::ModelConfig tower_config(engine::VisionFamily family) {
  engine::ModelConfig config = tiny_config();
  engine::VisionConfig& vision = config.vision.emplace();
  vision.family = family;
  vision.depth = 2;
  vision.width = 8;
  vision.mlp = 6;
  vision.heads = 2;
  vision.patch = 2;
  vision.temporal_patch = 1;
  vision.rope = {{1, 1, 2}, family == engine::VisionFamily::kQwen3Vl};
  if (family == engine::VisionFamily::kQwen2_5Vl) {
    vision.window = 4;
    vision.full_blocks = {1};
  }
  if (family == engine::VisionFamily::kQwen3Vl) {
    vision.positions = 9;
    vision.deepstack = {0, 1};
  }
  return config;
}

// A whole decoder with a tower. All parameters are drawn, those of norms around 1.
inline engine::Decoder tower_decoder(const engine::ModelConfig& config,
                                     at::ScalarType dtype = at::kDouble,
                                     engine::VisionTraining vision = engine::VisionTraining::kAll,
                                     double std = 0.4) {
  engine::Decoder decoder(config, engine::ComputeContext(dtype),
                          {.frozen = false, .projections = {}, .vision = vision});
  decoder.init_random(3, std);
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  for (engine::ParamUnit* unit : decoder.units()) {
    unit->flat().add_(at::randn(unit->flat().sizes(), at::kDouble).mul_(0.1));
    unit->changed();
  }
  return decoder;
}

// Patch rows of images of these grids.
inline at::Tensor random_patches(const engine::VisionConfig& config,
                                 const std::vector<engine::PatchGrid>& grids,
                                 at::ScalarType dtype = at::kDouble) {
  int64_t patches = 0;
  for (const engine::PatchGrid& grid : grids) {
    patches += grid.patches();
  }
  at::manual_seed(7);
  return at::randn({patches, config.row_size()}, at::kDouble).to(dtype);
}

}  // namespace ringside::test
