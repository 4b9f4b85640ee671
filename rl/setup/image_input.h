// Images of data files as models take them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/models/encode_images.h"
#include "rl/data/image_prompts.h"
#include "rl/data/record_pixels.h"

namespace ringside::rl {

// pixels: of an image by the hash of its file. rules: as it is processed. kept: as in ImageInput.
engine::ImageInput image_input(std::function<RecordPixels::Image(const std::string& hash)> pixels,
                               const ImageRules& rules, std::shared_ptr<engine::KeptRows> kept);

}  // namespace ringside::rl
