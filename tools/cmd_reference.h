// Commands `ringside man` and `ringside completion SHELL`: print the manual page and what a shell
// needs to complete command lines.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds both commands, which write to standard output. context must outlive the parsing.
void add_reference_commands(CommandContext& context);

}  // namespace ringside::tools
