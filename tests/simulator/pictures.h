// Images of a few pixels, told apart by a number that is also their token: what a rollout was made
// with can be seen from its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "tests/simulator/clock.h"

namespace ringside::simulator {

inline constexpr int64_t kFirstPictureToken = 2'000'000'000;  // of picture 0
inline constexpr int64_t kMostPictures = 3;                   // of a rollout

inline bridge::Image picture(int64_t number) {
  const int64_t height = 1 + number % 3;
  const int64_t width = 2 + number % 5;
  Random random(static_cast<uint64_t>(number));
  std::vector<uint8_t> rgb;
  for (int64_t i = 0; i < 3 * height * width; ++i) {
    rgb.push_back(static_cast<uint8_t>(random.next()));
  }
  return bridge::make_image(height, width, bridge::Buffer::own(std::move(rgb)));
}

// Appends up to kMostPictures images out of the first `pictures`, each on one or two tokens.
inline void illustrate(bridge::Rollout& r, int64_t pictures, Random& random) {
  if (pictures == 0) {
    return;
  }
  r.loss_mask.assign(r.completion_ids.size(), 1);
  for (int64_t left = random.between(0, kMostPictures); left > 0; --left) {
    const int64_t number = random.between(0, pictures - 1);
    const bridge::Image image = picture(number);
    const auto begin = static_cast<int64_t>(r.completion_ids.size());
    r.images.push_back({image.head.hash, image.head.height, image.head.width, begin,
                        begin + random.between(1, 2), image.rgb});
    const auto end = static_cast<std::size_t>(r.images.back().end);
    r.completion_ids.resize(end, kFirstPictureToken + number);
    r.loss_mask.resize(end, 0);
  }
  r.logprobs.resize(r.completion_ids.size(), -1.0F);
  r.versions.back().end = static_cast<int64_t>(r.completion_ids.size());
}

}  // namespace ringside::simulator
