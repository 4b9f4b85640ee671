// Command `ringside doctor [RECIPE...]`: what this program and this machine have, what a recipe can
// reach, with advice, and how fast this device is. The exit code is 1 if something stops a run.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_doctor_command(CommandContext& context);

}  // namespace ringside::tools
