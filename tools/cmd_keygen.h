// Command `ringside keygen --out DIR [--name trainer|worker|...]`: writes a CURVE key pair for the
// bridge to DIR/NAME.key (mode 0600) and DIR/NAME.pub. Never overwrites a file.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_keygen_command(CommandContext& context);

}  // namespace ringside::tools
