// `ringside keygen --out DIR [--name trainer|worker|...]`: a CURVE key pair for the bridge, as
// DIR/NAME.key (mode 0600) and DIR/NAME.pub. Never overwrites.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_keygen_command(CommandContext& context);

}  // namespace ringside::tools
