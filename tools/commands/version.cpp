#include "tools/commands/version.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include "engine/device/device_backend.h"
#include "tools/commands/source_commit.h"

namespace ringside::tools {
namespace {

// LibTorch's own version, out of the text that describes its build; "" when the text lacks it.
std::string loaded_torch_version() {
  const std::string config = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const std::size_t begin = config.find(key);
  if (begin == std::string::npos) {
    return "";
  }
  const std::size_t value = begin + key.size();
  return config.substr(value, config.find_first_of(", \n", value) - value);
}

std::string devices_line(const engine::DeviceBackend& backend) {
  const int64_t count = backend.device_count();
  if (count == 0) {
    return backend.name() + ": no device: " + backend.reason_none();
  }
  return backend.name() + ": " + std::to_string(count) + (count == 1 ? " device" : " devices");
}

}  // namespace

std::string program_name() {
  const std::string commit = source_commit();
  return "ringside " RINGSIDE_VERSION + (commit.empty() ? "" : " (commit " + commit + ")");
}

std::string version_text() {
  std::string text = program_name() + "\ntorch: built with " TORCH_VERSION ", running with " +
                     loaded_torch_version();
  for (const engine::DeviceBackend* backend : engine::device_backends()) {
    text += "\n" + devices_line(*backend);
    for (const std::string& line : backend->describe()) {
      text += "\n  " + line;
    }
  }
  return text;
}

}  // namespace ringside::tools
