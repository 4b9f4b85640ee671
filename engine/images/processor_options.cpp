#include "engine/images/processor_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "engine/json/json_object.h"

namespace ringside::engine {
namespace {

namespace fs = std::filesystem;

// A side or a repetition above this is a mistake.
constexpr int64_t kMostPixelsASide = 1024;
constexpr int64_t kMostPixels = int64_t{1} << 31;

// Keys that servers and other programs read, and keys of video. None changes the rows of an image.
constexpr std::array<std::string_view, 18> kWithoutEffect = {"processor_class",
                                                             "data_format",
                                                             "input_data_format",
                                                             "return_tensors",
                                                             "device",
                                                             "disable_grouping",
                                                             "crop_size",
                                                             "do_center_crop",
                                                             "default_to_square",
                                                             "do_pad",
                                                             "pad_size",
                                                             "size_divisor",
                                                             "image_seq_length",
                                                             "feature_extractor_type",
                                                             "auto_map",
                                                             "_processor_class",
                                                             "_valid_processor_keys",
                                                             "num_frames"};

void check_kind(const JsonObject& json) {
  constexpr std::array<std::string_view, 4> kKinds = {
      "Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2_5_VLImageProcessor",
      "Qwen2_5_VLImageProcessorFast"};
  const auto kind = json.text("image_processor_type");
  if (kind && std::find(kKinds.begin(), kKinds.end(), *kind) == kKinds.end()) {
    json.refuse("image_processor_type", "is " + *kind + ", expected Qwen2VLImageProcessor");
  }
}

// Steps that may be switched off are not off.
void check_steps(const JsonObject& json) {
  for (const char* step : {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"}) {
    if (json.boolean(step) == false) {
      json.refuse(step, "is false, expected true");
    }
  }
  for (const char* step : {"do_center_crop", "do_pad"}) {
    if (json.boolean(step) == true) {
      json.refuse(step, "is true, expected false");
    }
  }
  if (const auto resample = json.integer("resample"); resample && *resample != 3) {
    json.refuse("resample", "is " + std::to_string(*resample) + ", expected 3 (bicubic)");
  }
}

void read_side(const JsonObject& json, std::string_view key, int64_t& value) {
  value = json.integer(key).value_or(value);
  if (value < 1 || value > kMostPixelsASide) {
    json.refuse(
        key, "is " + std::to_string(value) + ", expected 1 to " + std::to_string(kMostPixelsASide));
  }
}

void read_channels(const JsonObject& json, std::string_view key, std::array<double, 3>& values,
                   bool positive) {
  const std::vector<double> given = json.numbers(key);
  if (given.empty()) {
    return;
  }
  if (given.size() != values.size()) {
    json.refuse(key, "has " + std::to_string(given.size()) + " values, expected 3");
    return;
  }
  std::copy(given.begin(), given.end(), values.begin());
  for (const double value : given) {
    if (!std::isfinite(value) || (positive && value <= 0.0)) {
      json.refuse(key, "has the value " + std::to_string(value) + ", expected finite numbers" +
                           (positive ? " above 0" : ""));
    }
  }
}

void read_pixels(const JsonObject& json, ProcessorOptions& options) {
  if (const auto size = json.object("size")) {
    // Early files state both; min_pixels and max_pixels beside size decide then.
    options.min_pixels = size->integer("shortest_edge").value_or(options.min_pixels);
    options.max_pixels = size->integer("longest_edge").value_or(options.max_pixels);
    options.min_pixels = size->integer("min_pixels").value_or(options.min_pixels);
    options.max_pixels = size->integer("max_pixels").value_or(options.max_pixels);
    for (const std::string& key : size->unread_keys()) {
      size->refuse(key, "is not known, expected shortest_edge and longest_edge");
    }
  }
  options.min_pixels = json.integer("min_pixels").value_or(options.min_pixels);
  options.max_pixels = json.integer("max_pixels").value_or(options.max_pixels);
  if (options.min_pixels < 1 || options.max_pixels < options.min_pixels ||
      options.max_pixels > kMostPixels) {
    json.refuse("max_pixels",
                "is " + std::to_string(options.max_pixels) + " with min_pixels " +
                    std::to_string(options.min_pixels) +
                    ", expected 1 <= min_pixels <= max_pixels <= " + std::to_string(kMostPixels));
  }
}

ProcessorOptions parse(const JsonObject& json) {
  ProcessorOptions options;
  check_kind(json);
  check_steps(json);
  read_side(json, "patch_size", options.patch);
  read_side(json, "temporal_patch_size", options.temporal_patch);
  read_side(json, "merge_size", options.merge);
  read_pixels(json, options);
  read_channels(json, "image_mean", options.mean, /*positive=*/false);
  read_channels(json, "image_std", options.standard_deviation, /*positive=*/true);
  options.rescale = json.number("rescale_factor").value_or(options.rescale);
  if (!std::isfinite(options.rescale) || options.rescale <= 0.0) {
    json.refuse("rescale_factor", "is " + std::to_string(options.rescale) + ", expected above 0");
  }
  for (const std::string& key : json.unread_keys()) {
    if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) == kWithoutEffect.end()) {
      json.refuse(key, "is not known; expected the keys of Qwen2VLImageProcessor");
    }
  }
  json.throw_refusals();
  return options;
}

}  // namespace

std::string ProcessorOptions::fingerprint() const {
  char text[512];
  std::snprintf(text, sizeof text,
                "patch %lld, temporal %lld, merge %lld, pixels %lld to %lld, mean %.17g %.17g "
                "%.17g, std %.17g %.17g %.17g, rescale %.17g",
                static_cast<long long>(patch), static_cast<long long>(temporal_patch),
                static_cast<long long>(merge), static_cast<long long>(min_pixels),
                static_cast<long long>(max_pixels), mean[0], mean[1], mean[2],
                standard_deviation[0], standard_deviation[1], standard_deviation[2], rescale);
  return text;
}

ProcessorOptions read_processor_options(const fs::path& model) {
  const fs::path file = model / "preprocessor_config.json";
  if (fs::exists(file)) {
    return parse(JsonObject::read(file));
  }
  const fs::path newer = model / "processor_config.json";
  if (fs::exists(newer)) {
    const JsonObject json = JsonObject::read(newer);
    return parse(json.require(json.object("image_processor"), "image_processor"));
  }
  throw std::runtime_error(model.string() +
                           " has neither preprocessor_config.json nor processor_config.json, one "
                           "of which says how images are resized");
}

}  // namespace ringside::engine
