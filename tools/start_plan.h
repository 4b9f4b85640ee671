// What a command does about the plan of a start.
#pragma once

#include <optional>

#include "rl/trainer/run_directory.h"

namespace ringside::tools {

// Says that a run is finished, or why it is refused, and returns the command's exit code; nothing
// when there is something to train. Under a launcher only rank 0 speaks.
std::optional<int> exit_code_of(const rl::StartPlan& plan);

}  // namespace ringside::tools
