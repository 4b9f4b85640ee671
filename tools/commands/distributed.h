// Set-up of a command's ranks: the environment gives this process's rank, the configuration the
// mesh.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"

namespace ringside::tools {

struct Ranks {
  sp::Mesh mesh;
  sp::ProcessGroups comms;
};

// Runs `body` as this process's rank of the configuration's mesh, connected to the other ranks.
// With sp.virtual_ranks it runs once per virtual rank, each on its own thread; an exception of one
// then ends the process with kExitFailure. If a launcher has set the rank (rank_environment.h), or
// one process holds the whole mesh, `body` runs in this process. Otherwise this process starts
// child processes with its own `arguments`, monitors them, and reports a failure with its rank.
// First writes parallel.data_parallel_replicate_size and the factors of
// parallel.context_parallel_size into `config`. Also sets the number of CPU threads and the log
// prefix. Returns the exit code.
// Collective over: all ranks.
// Blocks: until all ranks have joined and finished.
// Throws: std::invalid_argument when the mesh does not fit the environment's processes or the
// nodes; c10::Error when a rank does not join in time; what `body` throws; what model_device()
// throws.
// advice: as LaunchOptions::advice.
int run_on_ranks(rl::Config& config, int nproc, const std::vector<std::string>& arguments,
                 const std::function<void(const Ranks&)>& body,
                 const std::function<std::string(int signal)>& advice = {});

}  // namespace ringside::tools
