// Processes of a run on one machine: trainer ranks, and rollout workers where the run samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "tools/launch/launcher.h"

namespace ringside::tools {

struct RunProcesses {
  std::vector<std::string> words;  // recipes and overrides of the command line
  std::filesystem::path run_dir;
  std::vector<std::string> trainer_options;  // of `ringside train`
  int num_trainers = 1;
  bool with_workers = true;  // rollout.num_workers of them, unless the run is supervised
};

// Options of launch() for these processes. Events are logged, and steps in metrics.jsonl count as
// progress.
LaunchOptions launch_options(const rl::Config& config, const RunProcesses& run);

}  // namespace ringside::tools
