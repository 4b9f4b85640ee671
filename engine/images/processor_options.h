// Options of the image processor of a model directory. Torch-free.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

namespace ringside::engine {

// What Qwen2VLImageProcessor reads: of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, each with
// numbers of its own.
struct ProcessorOptions {
  int64_t patch = 14;          // pixels a side
  int64_t temporal_patch = 2;  // frames; a single image is repeated
  int64_t merge = 2;           // patches a side of one token
  int64_t min_pixels = 3136;   // of the resized image
  int64_t max_pixels = 1003520;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> standard_deviation = {0.26862954, 0.26130258, 0.27577711};
  double rescale = 0.00392156862745098;  // 1/255

  // Sides of a resized image are multiples of this.
  int64_t factor() const { return patch * merge; }
  // Numbers of a patch row.
  int64_t row_size() const { return 3 * temporal_patch * patch * patch; }
  // All of them as text: equal for processors that give equal rows.
  std::string fingerprint() const;
};

// The options in preprocessor_config.json of a model directory, or else those under
// "image_processor" in processor_config.json. What a file leaves out has the defaults above, as in
// transformers. min_pixels and max_pixels come before size.
// Throws: std::runtime_error naming file and key when neither file is there, when one is of another
// processor, has a key that is unknown or a value that cannot be honoured.
ProcessorOptions read_processor_options(const std::filesystem::path& model);

}  // namespace ringside::engine
