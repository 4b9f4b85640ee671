// The pattern of the executable's subcommands: tools/cmd_<name>.h declares one function that
// registers the command, and main.cpp calls it.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rl/config/load.h"

namespace ringside::tools {

// Exit codes of the executable, beside 128 + n for signal n.
constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;  // the run failed
constexpr int kExitUsage = 2;    // the command line or a recipe is wrong; nothing was started

// What a command's registering function gets. A command adds a subcommand to `app` whose callback
// does the work and sets `exit_code`; exceptions out of the callback are printed by main() and end
// in kExitFailure.
struct CommandContext {
  CLI::App& app;
  int exit_code = kExitOk;
  // The words after the executable's name: a launching parent starts its ranks with the same.
  std::vector<std::string> arguments;
};

// What an exception says, without the C++ stack that LibTorch adds to its own.
std::string error_text(const std::exception& error);

// Recipes and overrides as they stand on a command line, in any order.
struct ConfigInputs {
  std::vector<std::filesystem::path> recipes;
  std::vector<std::string> overrides;
};

// Sorts positional words: key=value is an override, unless a file of exactly that name exists; the
// rest are recipes.
ConfigInputs split_inputs(const std::vector<std::string>& words);

// Loads the configuration; when it has mistakes, prints them all to standard error and returns
// nullopt, for the command to end with kExitUsage.
std::optional<rl::LoadedConfig> load_or_print_errors(const ConfigInputs& inputs);

}  // namespace ringside::tools
