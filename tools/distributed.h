// Set-up of a command's ranks: the environment gives this process's rank, the configuration the
// mesh.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"
#include "tools/launch/launcher.h"

namespace ringside::tools {

struct Ranks {
  sp::Mesh mesh;
  sp::ProcessGroups comms;
};

// Number of processes that a run starts: one per rank of the mesh, or the value of --nproc (0 = not
// given). Fewer processes than ranks require sp.reproducible and must divide the number of ranks.
// Throws: std::invalid_argument otherwise.
int trainer_processes(const rl::Config& config, int nproc);

// Whether --nproc (0 = not given) fits the mesh. If it does not, prints why to standard error.
bool check_nproc(const rl::Config& config, int nproc);

// Runs `body` as this process's rank of the configuration's mesh, connected to the other ranks.
// With sp.reproducible it runs once per virtual rank, each on its own thread. If a launcher has set
// RANK, or one process holds the whole mesh, `body` runs in this process. Otherwise this process
// starts child processes with its own `arguments`, monitors them, and reports a failure with its
// rank. First writes the factors of parallel.context_parallel_size into `config`. Also sets the
// number of CPU threads and the log prefix. Returns the exit code.
// Collective over: all ranks.
// Blocks: until all ranks have joined and finished.
// Throws: std::invalid_argument when the mesh does not fit the environment's processes or the
// nodes; c10::Error when a rank does not join in time.
int run_on_ranks(rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void(const Ranks&)>& body);

// Logs the error of a launch, if any, and returns its exit code.
int report_launch(const LaunchResult& result);

}  // namespace ringside::tools
