// `ringside export`: a checkpoint as a Hugging Face directory.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_export_command(CommandContext& context);

}  // namespace ringside::tools
