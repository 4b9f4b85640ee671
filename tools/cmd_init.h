// Command `ringside init`: asks five questions and writes a recipe that `ringside check` accepts.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_init_command(CommandContext& context);

}  // namespace ringside::tools
