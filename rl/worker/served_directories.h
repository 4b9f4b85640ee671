// Hugging Face directories of the newest versions, for a server that reads weights from disk.
#pragma once

#include <filesystem>
#include <optional>

#include "rl/config/config.h"
#include "rl/publish/version_directories.h"
#include "rl/worker/shadow_model.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

class ServedDirectories {
 public:
  // Under rollout.server_options.weights_directory, or a directory of this process's own that goes
  // with it.
  explicit ServedDirectories(const Config& config);
  ~ServedDirectories();
  ServedDirectories(const ServedDirectories&) = delete;
  ServedDirectories& operator=(const ServedDirectories&) = delete;

  // The absolute path of a directory with what `shadow` holds; the newest two are kept. Blocks for
  // the disk. Throws what VersionDirectories::write throws.
  std::filesystem::path write(const ShadowModel& shadow, const bridge::Manifest& manifest) const;

 private:
  std::filesystem::path scratch_;  // empty: there is none to remove
  std::optional<VersionDirectories> directories_;
};

}  // namespace ringside::rl
