// `ringside report`.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_report_command(CommandContext& context);

}  // namespace ringside::tools
