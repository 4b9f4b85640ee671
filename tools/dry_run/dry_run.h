// Preparation of a dry run: a folder with a small copy of everything that a recipe names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::tools {

struct DryRunRequest {
  rl::Config config;               // the recipe's
  bool recorded_rollouts = false;  // trains on recorded rollouts, not on those of workers
  int64_t max_ranks = 1;           // a larger mesh is reduced
  std::filesystem::path dir;       // an empty folder for all files
  // Folder of shapes, NAME.json or NAME/config.json, for models that are not there.
  std::filesystem::path shapes;
};

struct PreparedDryRun {
  rl::Config config;               // of recipe
  std::filesystem::path recipe;    // the small settings
  std::filesystem::path run_dir;   // made by the run
  std::filesystem::path rollouts;  // recorded rollouts; empty = of workers
  std::vector<std::string> lines;  // what differs from the recipe, one sentence or key a line
};

// Writes a model directory (small shape, the recipe's tokenizer or a made-up one, no weights), data
// files and a recipe into request.dir. The shape comes from model.path; if that is not there, from
// the file in request.shapes with the name of its last part, else it is made up.
// Throws: std::runtime_error when the model's config.json cannot be used or a file not be written.
PreparedDryRun prepare_dry_run(const DryRunRequest& request);

}  // namespace ringside::tools
