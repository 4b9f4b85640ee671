// Images of a decoder's vision tower: from pixels to rows of the language model.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <span>

#include "engine/images/image_processor.h"
#include "engine/models/decoder.h"
#include "engine/vision/vision_tower.h"

namespace ringside::engine {

// Rows of images, one after another; there may be none. Pixels are normalised on the host.
// upload_stream: of make_side_stream() of the decoder's device.
// Differentiable, collective, blocks: as VisionTower::encode().
// Throws: c10::Error for a model without a vision tower; as VisionTower::encode() and patch_rows().
EncodedImages encode_images(const Decoder& decoder,
                            std::span<const std::shared_ptr<const ProcessedImage>> images,
                            const ProcessorOptions& processor,
                            const std::optional<c10::Stream>& upload_stream);

}  // namespace ringside::engine
