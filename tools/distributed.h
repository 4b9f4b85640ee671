// Joins the ranks of a command: the environment says who this process is, the configuration how the mesh looks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "sp/comm/mesh.h"
#include "tools/launch/launcher.h"

namespace ringside::tools {

struct Ranks {
  sp::Mesh mesh;
  sp::MeshCommunicators comms;
};

// Connects this process to the others of its run, alone when no launcher has set RANK. Also sets the number of CPU threads
// and the log prefix. Collective; blocks until all ranks have come. Throws std::invalid_argument when the mesh of the
// configuration does not have the environment's number of ranks, c10::Error when a rank does not come in time.
Ranks connect_ranks(const rl::Config& config);

// Runs `body` as one rank of the configuration's mesh. Where a launcher has set RANK, or the mesh has one rank, that is this
// process; otherwise the mesh's ranks are started with this process's own `arguments` and watched, and the failure of one
// is reported with its rank. nproc: what --nproc asked for, 0 = nothing; it must fit the mesh. Returns the exit code.
int run_on_ranks(const rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void()>& body);

// Throws std::invalid_argument when --nproc was given (not 0) and the mesh has another number of ranks.
void check_nproc(const rl::Config& config, int nproc);

// Logs the error of a launch, if there is one, and returns its exit code.
int report_launch(const LaunchResult& result);

}  // namespace ringside::tools
