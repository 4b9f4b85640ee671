// Command `ringside rollout RECIPE... [--run-dir DIR] [--worker-id ID] [key=value ...]`: runs one
// rollout worker, with the embedded generator or an inference server as rollout.server says. With
// --run-dir it finds the trainer through the run directory, else at bridge.rollout_address and
// bridge.weights_address.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_rollout_command(CommandContext& context);

}  // namespace ringside::tools
