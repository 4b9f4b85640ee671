// What engine/images makes of files, sizes and documents, for image_oracle.py: one JSON request a
// line from standard input, one JSON answer a line.
//   {"decode": FILE}                         {"height", "width", "hash"} of the pixels, or
//   {"error"}
//   {"resize": [h, w, H, W], "rgb": FILE}    {"hash"} of raw pixels of FILE resized
//   {"smart_resize": [h, w], "options": {patch, merge, min, max}}            {"size": [H, W]}
//   {"positions": tokens, "merge": m, "images": [[begin, gh, gw], ...]}      {"time", "height",
//   "width"}
#include <xxhash.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/images/image_decoder.h"
#include "engine/images/image_processor.h"
#include "engine/images/positions.h"
#include "engine/images/resize.h"

namespace ringside::engine {
namespace {

using nlohmann::json;

std::vector<uint8_t> file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hash_of(const std::vector<uint8_t>& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

json decoded(const std::string& path) {
  const std::vector<uint8_t> bytes = file_bytes(path);
  const RgbImage image = decode_image(bytes);
  if (image_size(bytes) != ImageSize{image.height, image.width}) {
    return {{"error", "image_size() says another size than decode_image()"}};
  }
  return {{"height", image.height}, {"width", image.width}, {"hash", hash_of(image.rgb)}};
}

json resized(const json& request) {
  const auto s = request.at("resize").get<std::vector<int64_t>>();
  const RgbImage image{s[0], s[1], file_bytes(request.at("rgb"))};
  return {{"hash", hash_of(resize_bicubic(image, {s[2], s[3]}).rgb)}};
}

json smart_size(const json& request) {
  const json& o = request.at("options");
  ProcessorOptions options;
  options.patch = o.at(0);
  options.merge = o.at(1);
  options.min_pixels = o.at(2);
  options.max_pixels = o.at(3);
  const json& s = request.at("smart_resize");
  const ImageSize size = smart_resize({s.at(0), s.at(1)}, options);
  return {{"size", {size.height, size.width}}};
}

json positions(const json& request) {
  std::vector<ImageSpan> spans;
  for (const json& image : request.at("images")) {
    spans.push_back({image.at(0), {1, image.at(1), image.at(2)}});
  }
  const TokenPositions found = token_positions(request.at("positions"), spans, request.at("merge"));
  return {{"time", found.time}, {"height", found.height}, {"width", found.width}};
}

json answer(const json& request) {
  try {
    return request.contains("decode")         ? decoded(request.at("decode"))
           : request.contains("resize")       ? resized(request)
           : request.contains("smart_resize") ? smart_size(request)
                                              : positions(request);
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace
}  // namespace ringside::engine

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << ringside::engine::answer(nlohmann::json::parse(line)).dump() << "\n";
  }
  return 0;
}
