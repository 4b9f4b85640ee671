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
#include "rl/preflight/preflight.h"

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

// Recipes and overrides as they stand on a command line, in any order.
struct ConfigInputs {
  std::vector<std::filesystem::path> recipes;
  std::vector<std::string> overrides;
  std::vector<std::string> mistakes;  // words that are neither, a sentence each
};

// Sorts positional words: key=value is an override, unless a file of exactly that name exists; the
// rest are recipes. A key without "=" (and no file of that name), or with "=" or ":" apart from it,
// is a mistake.
ConfigInputs split_inputs(const std::vector<std::string>& words);

// Loads the configuration and sets log.level of this process; when it has mistakes, prints them all
// to standard error and returns nullopt, for the command to end with kExitUsage.
std::optional<rl::LoadedConfig> load_or_print_errors(const ConfigInputs& inputs);

// Opens what the configuration is going to open (rl/preflight). Prints all mistakes to standard
// error, each with where its key was set; true when there are none. `notes` gets what the files
// hold.
bool pass_preflight(const rl::LoadedConfig& loaded, const rl::PreflightScope& scope,
                    std::vector<std::string>& notes);

// What an exception says to a user: without the stack trace of LibTorch's errors and without the
// labels of libraries.
std::string error_text(const std::exception& error);

// Whether `path` can be written; an existing file is not touched, a new one not left behind. Prints
// a sentence that names `option` to standard error when it cannot.
bool check_writable(const std::string& option, const std::filesystem::path& path);

// For an option that counts: whole numbers from 1.
CLI::Validator at_least_one();

}  // namespace ringside::tools
