// Rank of this process as its launcher gives it in the environment: torchrun, Slurm's srun, or
// Ringside's own launcher.
#pragma once

#include <optional>
#include <string>

namespace ringside::tools {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_addr;  // where rank 0 serves the rendezvous store
  int master_port = 0;
};

// Reads RANK and WORLD_SIZE (torchrun, Ringside's launcher) first, then SLURM_PROCID and
// SLURM_NTASKS of a step that srun started. nullopt when neither pair is set, so that processes
// must still be started. Under srun on one node the address defaults to 127.0.0.1 and the port to
// one derived from the job and step, equal on every rank. Reads the environment only.
// Throws: std::invalid_argument naming the variable and its value, when a set is incomplete or out
// of range, e.g. RANK without WORLD_SIZE, or several nodes without MASTER_ADDR.
// Thread safety: must not run while another thread changes the environment.
std::optional<RankEnvironment> rank_environment();

}  // namespace ringside::tools
