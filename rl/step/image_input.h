// Images of data files as a model runner takes them.
#pragma once

#include <memory>

#include "engine/runner/image_encoder.h"
#include "rl/data/image_prompts.h"
#include "rl/data/record_pixels.h"

namespace ringside::rl {

// Pixels by the hashes of image_id(), processed as `rules` say. kept: as ImageInput::kept.
engine::ImageInput image_input(std::shared_ptr<RecordPixels> pixels, const ImageRules& rules,
                               std::shared_ptr<engine::KeptRows> kept);

}  // namespace ringside::rl
