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

// Number of processes that a run starts: one per rank of the mesh, or the value of --nproc (0 = not
// given). Fewer processes than ranks require sp.virtual_ranks and must divide the number of ranks.
// Throws: std::invalid_argument otherwise.
int trainer_processes(const rl::Config& config, int nproc);

// Whether --nproc (0 = not given) fits the mesh. If it does not, prints why to standard error.
bool check_nproc(const rl::Config& config, int nproc);

// Logs the error of a launch, if any, and returns its exit code.
int report_launch(const LaunchResult& result);

}  // namespace ringside::tools
