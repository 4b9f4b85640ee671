#include "rl/data/record_images.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "engine/images/image_decoder.h"
#include "engine/json/json_text.h"
#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {
namespace {

using Json = nlohmann::ordered_json;

// More than a model's positions hold, and a bound on what a record can have read.
constexpr std::size_t kMostImages = 256;
constexpr std::array kImageKeys = {"image", "image_url"};
constexpr std::array kVideoKeys = {"video", "video_url"};

// Whether a part's type is one of `keys`, or it has a value under one: templates ask for either.
bool is_part(const Json& part, const std::array<const char*, 2>& keys) {
  if (!part.is_object()) {
    return false;
  }
  const auto type = part.find("type");
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) {
    return (type != part.end() && *type == key) || (part.contains(key) && !part.at(key).is_null());
  });
}

bool is_image(const Json& part) { return is_part(part, kImageKeys); }
bool is_video(const Json& part) { return is_part(part, kVideoKeys); }

std::string count_of(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// Calls `use` with each part of each message that is a list of parts.
template <class Messages, class Use>
void visit_parts(Messages& messages, const Use& use) {
  if (!messages.is_array()) {
    return;
  }
  for (auto& message : messages) {
    if (message.is_object() && message.contains("content") && message.at("content").is_array()) {
      for (auto& part : message.at("content")) {
        use(part);
      }
    }
  }
}

// The text that a value names an image by; "" for a null.
std::string source_text(const Json& value) {
  if (value.is_null()) {
    return "";
  }
  if (value.is_object()) {
    for (const char* key : {"url", "path"}) {
      if (value.contains(key)) {
        return source_text(value.at(key));
      }
    }
  }
  if (!value.is_string()) {
    throw std::runtime_error("an image is " + engine::kind_of(value) +
                             ", expected a path, a data URI or {\"path\"}");
  }
  return value.get<std::string>();
}

// The text by which a part names its own image; "" when it takes the next of the record's list.
std::string part_source(const Json& part) {
  for (const char* key : {"image", "image_url", "url", "path"}) {
    if (part.contains(key)) {
      return source_text(part.at(key));
    }
  }
  return "";
}

std::vector<RecordBlob> json_blobs(const Json& value) {
  std::vector<RecordBlob> blobs;
  if (value.is_array()) {
    for (const Json& one : value) {
      blobs.push_back({{}, source_text(one)});
    }
  } else if (!value.is_null()) {
    blobs.push_back({{}, source_text(value)});
  }
  return blobs;
}

std::vector<EncodedImage> listed_images(RecordSet& records, int64_t i, const Json& record,
                                        const std::string& key) {
  if (key.empty()) {
    return {};
  }
  auto blobs = records.blobs(i, key);
  if (!blobs) {
    blobs = record.contains(key) ? json_blobs(record.at(key)) : std::vector<RecordBlob>();
  }
  if (blobs->size() > kMostImages) {
    throw std::runtime_error("has " + count_of(blobs->size(), "image") + " under \"" + key +
                             "\", expected at most " + std::to_string(kMostImages));
  }
  std::vector<EncodedImage> images;
  for (RecordBlob& blob : *blobs) {
    if (blob.bytes.empty()) {
      images.push_back(read_image_text(blob.text, records.folder(i)));
    } else {
      images.push_back({std::to_string(blob.bytes.size()) + " bytes", std::move(blob.bytes)});
    }
  }
  return images;
}

}  // namespace

std::vector<EncodedImage> record_images(RecordSet& records, int64_t i, const Json& record,
                                        const Json& prompt, const DataConfig& config) {
  const std::string& key = config.image_key;
  if (key.empty() && has_image_parts(prompt)) {
    throw std::runtime_error(
        "a message has an image, and data.image_key is not set; expected the field that holds the "
        "record's images, or text alone");
  }
  std::vector<EncodedImage> listed = listed_images(records, i, record, key);
  if (!prompt.is_array()) {
    return listed;
  }
  std::vector<EncodedImage> images;
  std::size_t taken = 0, places = 0;
  visit_parts(prompt, [&](const Json& part) {
    if (is_video(part)) {
      throw std::runtime_error("a message has a video; expected images and text");
    }
    if (!is_image(part)) {
      return;
    }
    const std::string source = part_source(part);
    if (!source.empty()) {
      images.push_back(read_image_text(source, records.folder(i)));
    } else if (places++ < listed.size()) {
      images.push_back(std::move(listed[taken++]));
    }
  });
  if (places != listed.size()) {
    throw std::runtime_error("has " + count_of(listed.size(), "image") + " under \"" + key +
                             "\" (data.image_key), and its messages have " +
                             count_of(places, "part") + " of type image without one of its own");
  }
  return images;
}

PromptImage describe_image(const EncodedImage& image) {
  try {
    return {image.name, engine::image_size(image.bytes),
            bridge::hash128(std::as_bytes(std::span(image.bytes)))};
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(image.name + ": " + error.what());
  }
}

bool has_image_parts(const Json& messages) {
  bool found = false;
  visit_parts(messages, [&](const Json& part) { found |= is_image(part) || is_video(part); });
  return found;
}

Json without_image_sources(Json messages) {
  visit_parts(messages, [](Json& part) {
    if (is_image(part)) {
      part = Json{{"type", "image"}};
    } else if (part.is_object()) {
      // A null that a table has in each part: to a template the key alone means an image.
      for (const char* key : kImageKeys) {
        part.erase(key);
      }
    }
  });
  return messages;
}

}  // namespace ringside::rl
