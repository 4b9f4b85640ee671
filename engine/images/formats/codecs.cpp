#include "engine/images/formats/codecs.h"

#include <array>

// Not inside a function: the table must outlive every caller.
static const std::array<ringside::engine::ImageCodec, 3> kCodecs = {
    ringside::engine::kJpegCodec, ringside::engine::kPngCodec, ringside::engine::kWebpCodec};

extern "C" std::span<const ringside::engine::ImageCodec> ringside_image_codecs() { return kCodecs; }
