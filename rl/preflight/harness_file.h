// Whether the harness or environment of a recipe can be started.
#pragma once

#include "rl/preflight/preflight.h"

namespace ringside::rl {

// With workers on this machine: imports the file of rollout.harness with its own Python and finds
// the function, or makes an environment of rollout.environment. Adds a mistake that names file and
// line. Does nothing for an external harness. Blocks: until the file is imported.
void check_harness(const Config& config, const PreflightScope& scope, PreflightReport& report);

}  // namespace ringside::rl
