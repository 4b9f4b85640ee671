// `ringside export`: a checkpoint as a Hugging Face directory.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_export_command(CommandContext& context);

}  // namespace ringside::tools
