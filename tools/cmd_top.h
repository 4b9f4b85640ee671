// `ringside top`.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_top_command(CommandContext& context);

}  // namespace ringside::tools
