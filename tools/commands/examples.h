// Examples of each command, at the end of its --help and in the manual page.
#pragma once

#include <CLI/CLI.hpp>

namespace ringside::tools {

// Gives every command of `app` that has examples its footer.
void set_examples(CLI::App& app);

}  // namespace ringside::tools
