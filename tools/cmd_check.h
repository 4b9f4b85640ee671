// Command `ringside check [RECIPE...] [key=value ...]`: prints what a recipe changes, with the
// origin of each value, the batch arithmetic that follows, and the mesh. Opens everything that
// `run` would open (rl/preflight). Starts nothing. Prints all mistakes; the exit code is 2 if there
// are any.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_check_command(CommandContext& context);

}  // namespace ringside::tools
