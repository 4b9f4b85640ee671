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

// Copies this process's warnings to RUN_DIR/warnings.log from now on, and its whole log to
// RUN_DIR/run.log unless it passes through a parent of ours, which copies it. Makes the directory.
// Throws: std::runtime_error that names the directory when it cannot be made or written to.
void log_to_run_directory(const std::filesystem::path& run_dir);

// Why a run cannot write to `run_dir`, which need not exist: it or a folder above it is a file or
// read-only. "" if it can. Writes nothing.
std::string run_directory_problem(const std::filesystem::path& run_dir);

// Whether this process's output passes through a parent of ours.
bool is_relayed();

// What the user can do after a process was killed: for LaunchOptions::advice.
std::string advice_after_kill(const std::filesystem::path& run_dir, int signal);

// Logs the error of a launch, if any, and returns its exit code.
int report_launch(const LaunchResult& result);

}  // namespace ringside::tools
