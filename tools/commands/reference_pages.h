// Manual page and shell completion, made from the definitions of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ringside::tools {

// The text of ringside(1) in man's macros.
std::string manual_page(const CLI::App& app);

// Completion of commands, options, and keys of the configuration; other words are completed as
// files.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

}  // namespace ringside::tools
