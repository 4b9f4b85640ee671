// Images of a record: which ones a prompt has, and in which order. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/images/rgb_image.h"
#include "rl/config/config.h"
#include "rl/data/image_file.h"
#include "rl/data/record_set.h"

namespace ringside::rl {

// What is known of an image of a prompt before it is decoded.
struct PromptImage {
  std::string name;  // as EncodedImage::name
  // Upright, as decode_image() gives it.
  engine::ImageSize size;
  std::string hash;  // XXH3-128 of its file, 32 hex digits
};

// The images of record i, `record`, in the order of their places in the prompt. Under
// data.image_key a record has one image or a list: a path, a data URI, {"path"}, or in Parquet
// bytes. A message of `prompt` (data.prompt_key) has an image at each part of type image or
// image_url: that which the part itself names, else the next of the list. A prompt that is text has
// all images of the list.
// Throws: std::runtime_error when there are more or fewer parts than images, more than 256 images,
// a part is a video, an image is named where data.image_key is not set, and as read_image_text.
std::vector<EncodedImage> record_images(RecordSet& records, int64_t i,
                                        const nlohmann::ordered_json& record,
                                        const nlohmann::ordered_json& prompt,
                                        const DataConfig& config);

// Size and hash of an image. Throws: as engine::image_size, with its name.
PromptImage describe_image(const EncodedImage& image);

// Whether a message of a list has a part that is an image or a video.
bool has_image_parts(const nlohmann::ordered_json& messages);

// The messages as templates render them: parts that are images are {"type": "image"} alone, since a
// template writes the same for each.
nlohmann::ordered_json without_image_sources(nlohmann::ordered_json messages);

}  // namespace ringside::rl
