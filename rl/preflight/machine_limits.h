// What this machine must have for a run: free ports, cores.
#pragma once

#include "rl/preflight/preflight.h"

namespace ringside::rl {

// Rejects a port of bridge.rollout_address, bridge.weights_address or log.openmetrics that another
// program uses. Port 0 is always free. A host that is no IP address is left to the start of the
// run. Blocks: never; binds each port for a moment.
void check_ports(const Config& config, const PreflightScope& scope, PreflightReport& report);

// Adds a note for train.threads, rollout.worker_threads or ranks of the CPU above this machine's
// cores.
void note_threads(const Config& config, const PreflightScope& scope, PreflightReport& report);

}  // namespace ringside::rl
