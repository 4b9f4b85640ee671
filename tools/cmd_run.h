// Command `ringside run RECIPE... --run-dir DIR [key=value ...]`: starts the trainer ranks and the
// rollout workers on this machine, monitors them, and stops them.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_run_command(CommandContext& context);

}  // namespace ringside::tools
