// Joins the ranks of a command: the environment says who this process is, the configuration how the
// mesh looks.
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

// Processes that a run starts: one for each rank of the mesh, or what --nproc asks for (0 =
// nothing). Fewer than ranks need sp.reproducible, and must divide them. Throws
// std::invalid_argument otherwise.
int trainer_processes(const rl::Config& config, int nproc);

// Runs `body` as this process's rank of the configuration's mesh, connected to the others; with
// sp.reproducible once per virtual rank, each on a thread of its own. Where a launcher has set
// RANK, or one process carries the mesh, that happens here; otherwise the processes are started
// with this one's own `arguments` and watched, and the failure of one is reported with its rank.
// First writes the factors of parallel.context_parallel_size into `config`. Also sets the number of
// CPU threads and the log prefix. Collective; blocks until all ranks have come and done. Throws
// std::invalid_argument when the mesh does not fit the environment's processes or the nodes,
// c10::Error when a rank does not come in time. Returns the exit code.
int run_on_ranks(rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void(const Ranks&)>& body);

// Logs the error of a launch, if there is one, and returns its exit code.
int report_launch(const LaunchResult& result);

}  // namespace ringside::tools
