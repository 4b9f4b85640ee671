// `ringside check [RECIPE...] [key=value ...]`: the resolved configuration with the origin of each
// value, what was set first, and the batch arithmetic that follows from it; then everything that
// `run` would open is opened (rl/preflight). Starts nothing. Exit code 2 when there are mistakes,
// all of which are printed.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_check_command(CommandContext& context);

}  // namespace ringside::tools
