#include "rl/worker/served_directories.h"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "rl/config/adapter_names.h"
#include "rl/setup/model_setup.h"

namespace ringside::rl {
namespace {

// The version in use and the previous one, which a server may still have open.
constexpr int64_t kDirectoriesKept = 2;

std::filesystem::path make_scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "ringside-weights-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "cannot make " + name);
  }
  return name;
}

}  // namespace

ServedDirectories::ServedDirectories(const Config& config)
    : base_model_(config.model.path), adapters_(adapter_names(config.lora)) {
  std::filesystem::path root = config.rollout.server_options.weights_directory;
  if (root.empty()) {
    root = scratch_ = make_scratch();
  }
  directories_.emplace(std::filesystem::absolute(root), kDirectoriesKept,
                       scalar_type(config.model.dtype), config.model.path);
}

ServedDirectories::~ServedDirectories() {
  std::error_code ignored;
  if (!scratch_.empty()) {
    std::filesystem::remove_all(scratch_, ignored);
  }
}

std::filesystem::path ServedDirectories::write(ShadowModel& shadow,
                                               const bridge::Manifest& manifest) const {
  return directories_->write(shadow.decoder(), manifest.trainer_term, manifest.version);
}

std::filesystem::path ServedDirectories::write_adapters(ShadowModel& shadow,
                                                        const bridge::Manifest& manifest) const {
  if (adapters_.empty()) {
    return directories_->write_adapters(*shadow.decoder().adapters(), base_model_,
                                        manifest.trainer_term, manifest.version);
  }
  VersionDirectories::NamedAdapters all;
  for (const std::string& name : adapters_) {
    all.emplace_back(name, shadow.decoder(name).adapters());
  }
  return directories_->write_adapters(all, base_model_, manifest.trainer_term, manifest.version);
}

}  // namespace ringside::rl
