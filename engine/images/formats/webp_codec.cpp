// WebP by libwebp.
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/images/formats/codecs.h"

namespace ringside::engine {
namespace {

[[noreturn]] void fail(const std::string& problem) {
  throw std::runtime_error("is a WebP that cannot be decoded: " + problem);
}

WebPBitstreamFeatures features_of(std::span<const uint8_t> bytes) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) {
    fail("its head is damaged");
  }
  return features;
}

std::vector<uint8_t> exif_chunk(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  std::vector<uint8_t> exif;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) != 0) {
    exif.assign(chunk.chunk.bytes, chunk.chunk.bytes + chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
  }
  return exif;
}

void decode_first_frame(const WebPData& data, const ImageHeader& header, uint8_t* pixels) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) {
    throw std::runtime_error("cannot be decoded: libwebp is of another version");
  }
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(
      WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
  uint8_t* frame = nullptr;
  int timestamp = 0;
  if (decoder == nullptr || WebPAnimDecoderGetNext(decoder.get(), &frame, &timestamp) == 0) {
    fail("its first frame is damaged");
  }
  const auto count = static_cast<std::size_t>(header.height * header.width);
  const auto channels = static_cast<std::size_t>(header.channels);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(pixels + i * channels, frame + i * 4, channels);
  }
}

bool begins(std::span<const uint8_t> bytes) {
  return bytes.size() >= 12 && std::memcmp(bytes.data(), "RIFF", 4) == 0 &&
         std::memcmp(bytes.data() + 8, "WEBP", 4) == 0;
}

ImageHeader header(std::span<const uint8_t> bytes) {
  const WebPBitstreamFeatures features = features_of(bytes);
  const WebPData data = {bytes.data(), bytes.size()};
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&data),
                                                                     WebPDemuxDelete);
  if (demuxer == nullptr) {
    fail("the file ends early, or is damaged");
  }
  return {features.height, features.width, features.has_alpha != 0 ? 4 : 3,
          exif_chunk(demuxer.get())};
}

void decode(std::span<const uint8_t> bytes, const ImageHeader& header, uint8_t* pixels) {
  if (features_of(bytes).has_animation != 0) {
    decode_first_frame({bytes.data(), bytes.size()}, header, pixels);
    return;
  }
  const int stride = static_cast<int>(header.width * header.channels);
  const auto size = static_cast<std::size_t>(header.height) * static_cast<std::size_t>(stride);
  const auto into = header.channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (into(bytes.data(), bytes.size(), pixels, size, stride) == nullptr) {
    fail("the file ends early, or is damaged");
  }
}

}  // namespace

const ImageCodec kWebpCodec = {"WebP", begins, header, decode};

}  // namespace ringside::engine
