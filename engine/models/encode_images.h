// Images of a decoder's vision tower: from pixels to rows of the language model.
//
// Shapes: n = tokens of an image, E = hidden size, L = deepstack levels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/images/image_processor.h"
#include "engine/models/decoder.h"
#include "engine/vision/vision_tower.h"
#include "sp/batch/document.h"

namespace ringside::engine {

// Rows of images, one after another; there may be none. Pixels are normalised on the host.
// upload_stream: of make_side_stream() of the decoder's device.
// Differentiable, collective, blocks: as VisionTower::encode().
// Throws: c10::Error for a model without a vision tower; as VisionTower::encode() and patch_rows().
EncodedImages encode_images(const Decoder& decoder,
                            std::span<const std::shared_ptr<const ProcessedImage>> images,
                            const ProcessorOptions& processor,
                            const std::optional<c10::Stream>& upload_stream);

// The rows and the deepstack levels side by side, [n, E * (1 + L)], and back.
at::Tensor join_levels(const EncodedImages& images);
EncodedImages split_levels(const at::Tensor& joined, int64_t hidden_size);

// Joined rows of images by their ids, of which the least recently used are dropped. Thread safety:
// none.
class KeptRows {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;
  // Bytes on the device.
  explicit KeptRows(int64_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // Undefined if they are not kept.
  at::Tensor find(const sp::ImageId& id);
  // Keeps rows unless they are more than the bound.
  void add(const sp::ImageId& id, const at::Tensor& rows);
  int64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    sp::ImageId id;
    at::Tensor rows;
  };
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::list<Kept> kept_;  // used last at the front
  std::map<sp::ImageId, std::list<Kept>::iterator> place_of_;
};

// Where pixels come from, and where rows are kept.
struct ImageInput {
  // The image of an id, resized. Called by the thread that runs the model.
  std::function<std::shared_ptr<const ProcessedImage>(const sp::ImageId& id)> pixels;
  ProcessorOptions processor;
  // Rows that a constant tower has made. Models with the same tower may share them. Null: none are
  // kept.
  std::shared_ptr<KeptRows> kept = {};
};

// Joined rows of each image, without autograd. Those that are kept are not encoded again, so the
// tower must not have changed since.
// Collective over: nothing; the tower is whole on this rank.
// Throws: as encode_images(); what input.pixels throws.
std::vector<at::Tensor> encode_each(const Decoder& decoder, std::span<const sp::ImageId> ids,
                                    const ImageInput& input,
                                    const std::optional<c10::Stream>& upload_stream);

}  // namespace ringside::engine
