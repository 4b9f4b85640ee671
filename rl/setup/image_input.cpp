#include "rl/setup/image_input.h"

#include <utility>

#include "rl/data/image_fields.h"

namespace ringside::rl {

engine::ImageInput image_input(std::function<RecordPixels::Image(const std::string& hash)> pixels,
                               const ImageRules& rules, std::shared_ptr<engine::KeptRows> kept) {
  return {[pixels = std::move(pixels)](const sp::ImageId& id) { return pixels(image_hash(id)); },
          rules.processor, std::move(kept)};
}

}  // namespace ringside::rl
