// The codecs of the shared library, a file each. Their functions are described in image_codec.h.
// Torch-free.
#pragma once

#include "engine/images/formats/image_codec.h"

namespace ringside::engine {

// JPEG with 8 bits, Huffman coded, grey or of three colours.
extern const ImageCodec kJpegCodec;
// PNG with up to 8 bits a channel.
extern const ImageCodec kPngCodec;
// WebP, lossy and lossless.
extern const ImageCodec kWebpCodec;

}  // namespace ringside::engine
