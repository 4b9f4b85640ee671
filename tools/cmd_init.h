// Command `ringside init`: asks five questions and writes a recipe that `ringside check` accepts.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_init_command(CommandContext& context);

}  // namespace ringside::tools
