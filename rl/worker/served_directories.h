// Hugging Face directories of the newest versions, for a server that reads weights from disk.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "rl/config/config.h"
#include "rl/publish/version_directories.h"
#include "rl/worker/shadow_model.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

class ServedDirectories {
 public:
  // Uses rollout.server_options.weights_directory, or a temporary directory that is removed with
  // this object.
  // Throws: std::system_error when that cannot be made.
  explicit ServedDirectories(const Config& config);
  ~ServedDirectories();
  ServedDirectories(const ServedDirectories&) = delete;
  ServedDirectories& operator=(const ServedDirectories&) = delete;

  // Writes the weights of `shadow` and returns the directory's absolute path. The newest two are
  // kept.
  // Blocks: on the disk.
  // Throws: what VersionDirectories::write throws.
  std::filesystem::path write(ShadowModel& shadow, const bridge::Manifest& manifest) const;
  // Writes the adapters of `shadow`, which has some, as a PEFT directory, with lora.adapters one in
  // a folder for each name. Otherwise as write().
  std::filesystem::path write_adapters(ShadowModel& shadow, const bridge::Manifest& manifest) const;

 private:
  std::string base_model_;
  std::vector<std::string> adapters_;  // of lora.adapters
  std::filesystem::path scratch_;      // empty: there is none to remove
  std::optional<VersionDirectories> directories_;
};

}  // namespace ringside::rl
