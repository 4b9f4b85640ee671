#include "rl/rollouts/sample_images.h"

#include <algorithm>

#include "engine/images/image_decoder.h"
#include "engine/images/resize.h"
#include "rollout_bridge/base/base64.h"

namespace ringside::rl {

std::string image_uri(const engine::RgbImage& image) {
  constexpr int kQuality = 80;
  const int64_t longer = std::max(image.height, image.width);
  const auto shrunk = [&](int64_t side) {
    return longer <= kLoggedImageSide ? side
                                      : std::max<int64_t>(1, side * kLoggedImageSide / longer);
  };
  const engine::RgbImage small =
      engine::resize_bicubic(image, {shrunk(image.height), shrunk(image.width)});
  return "data:image/jpeg;base64," + bridge::base64(engine::write_jpeg(small, kQuality));
}

}  // namespace ringside::rl
