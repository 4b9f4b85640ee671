// Joins the ranks of a command: the environment says who this process is, the configuration how the mesh looks.
#pragma once

#include "rl/config/config.h"
#include "sp/comm/mesh.h"

namespace ringside::tools {

struct Ranks {
  sp::Mesh mesh;
  sp::MeshCommunicators comms;
};

// Connects this process to the others of its run, alone when no launcher has set RANK. Also sets the number of CPU threads
// and the log prefix. Collective; blocks until all ranks have come. Throws std::invalid_argument when the mesh of the
// configuration does not have the environment's number of ranks, c10::Error when a rank does not come in time.
Ranks connect_ranks(const rl::Config& config);

// How many ranks the command should start: --nproc when given (0 = not given), else the mesh's size. Throws
// std::invalid_argument when both are given and differ.
int ranks_to_start(const rl::Config& config, int nproc);

}  // namespace ringside::tools
