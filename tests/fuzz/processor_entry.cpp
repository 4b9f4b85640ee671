#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "engine/images/image_processor.h"
#include "tests/fuzz/entries.h"
#include "tests/rollout_bridge/samples.h"

namespace ringside::bridge::fuzz {
namespace {

void check_size(engine::ImageSize size, const engine::ProcessorOptions& options) {
  engine::ImageSize resized;
  try {
    resized = engine::smart_resize(size, options);
  } catch (const std::invalid_argument&) {
    return;
  }
  require(resized.height >= options.factor() && resized.height % options.factor() == 0);
  require(resized.width >= options.factor() && resized.width % options.factor() == 0);
  const engine::PatchGrid grid = engine::patch_grid(resized, options);
  require(grid.height * options.patch == resized.height);
  require(grid.width * options.patch == resized.width);
  require(grid.tokens(options.merge) * options.merge * options.merge == grid.patches());
  require(engine::smart_resize(size, options) == resized);
}

}  // namespace

void processor(std::span<const uint8_t> bytes) {
  static const test::TempDir folder;
  {
    std::ofstream out(folder.path() / "preprocessor_config.json", std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }
  try {
    const engine::ProcessorOptions options = engine::read_processor_options(folder.path());
    require(options.patch >= 1 && options.temporal_patch >= 1 && options.merge >= 1);
    require(options.min_pixels >= 1 && options.max_pixels >= options.min_pixels);
    require(engine::read_processor_options(folder.path()).fingerprint() == options.fingerprint());
    for (const engine::ImageSize size :
         {engine::ImageSize{1, 1}, {10, 14}, {1, 200}, {3000, 4000}, {1, 4000}}) {
      check_size(size, options);
    }
  } catch (const std::runtime_error& error) {
    require(std::string(error.what()).find("preprocessor_config.json") != std::string::npos);
  }
}

}  // namespace ringside::bridge::fuzz
