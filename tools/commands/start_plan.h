// Handling of a start plan by a command.
#pragma once

#include <optional>

#include "rl/trainer/run_directory.h"

namespace ringside::tools {

// If the plan starts no training, logs that the run is finished, or why it is refused, and returns
// the command's exit code; else nullopt. Under a launcher only rank 0 logs.
std::optional<int> exit_code_of(const rl::StartPlan& plan);

}  // namespace ringside::tools
