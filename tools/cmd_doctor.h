// `ringside doctor`: what this program and this machine have, and how fast this device is.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_doctor_command(CommandContext& context);

}  // namespace ringside::tools
