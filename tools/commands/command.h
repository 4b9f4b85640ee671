// Shared parts of the executable's subcommands.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "rl/config/load.h"
#include "rl/preflight/preflight.h"
#include "rl/sampling/prompt_sampler.h"

namespace ringside::tools {

// Exit codes of the executable, beside 128 + n for signal n.
constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;  // the run failed
constexpr int kExitUsage = 2;    // the command line or a recipe is wrong; nothing was started

// A mistake in what the user named. main() prints it and exits with kExitUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Argument of a command's registering function. The function adds a subcommand to `app`. Its
// callback does the work and sets `exit_code`. main() prints an exception of the callback and exits
// with kExitFailure.
struct CommandContext {
  CLI::App& app;
  int exit_code = kExitOk;
  // The arguments after the executable's name. A launching parent starts its ranks with the same
  // arguments.
  std::vector<std::string> arguments;
};

// Recipes and overrides of a command line, in any order.
struct ConfigInputs {
  std::vector<std::filesystem::path> recipes;
  std::vector<std::string> overrides;
  std::vector<std::string> mistakes;  // one sentence per argument that is neither
  rl::ConfigUse use = rl::ConfigUse::kRun;
};

// Sorts positional arguments into recipes and overrides. key=value is an override, unless a file of
// exactly that name exists; the others are recipes. A key without "=" (and no file of that name),
// or with "=" or ":" separated from it, is a mistake. A recipe that is not found under its path is
// looked for among the program's files: quickstart/grpo.yaml, configs/defaults.yaml.
ConfigInputs split_inputs(const std::vector<std::string>& words);

// Loads the configuration. If it has no mistake, sets log.level of this process and turns
// train.epochs into train.steps.
rl::LoadedConfig load(const ConfigInputs& inputs);

// Prints all mistakes and their number to standard error.
void print_errors(const rl::LoadedConfig& loaded);

// load(). If there are mistakes, prints them all to standard error and returns nullopt; the command
// then exits with kExitUsage.
std::optional<rl::LoadedConfig> load_or_print_errors(const ConfigInputs& inputs);

// Loads the configuration of a command that samples from a model's directory, and sets this
// process's threads to train.threads. If the directory or the configuration has mistakes, prints
// them all to standard error and returns nullopt; the command then exits with kExitUsage.
std::optional<rl::LoadedConfig> load_for_sampling(const std::filesystem::path& model,
                                                  const std::vector<std::string>& words);

// Runs the preflight checks (rl/preflight). Prints all mistakes to standard error, each with the
// origin of its key. Returns true if there are none. `notes` receives a description of the files.
bool pass_preflight(const rl::LoadedConfig& loaded, const rl::PreflightScope& scope,
                    std::vector<std::string>& notes);

// Where no recipe sets rollout.max_completion_tokens, lowers it to what the model's positions leave
// after the longest of these prompts, and says so. Throws: as PromptSampler::fit_completions().
void fit_completions(const rl::LoadedConfig& loaded, const std::vector<rl::Prompt>& prompts,
                     rl::PromptSampler& sampler);

// Whether `model` can be a model's directory; prints the problem to standard error.
bool check_model_directory(const std::filesystem::path& model);

// The message of an exception for a user: without the stack trace of LibTorch's errors and without
// library prefixes.
std::string error_text(const std::exception& error);

// Runs `work`, which opens what the user named; its exception becomes a UsageError.
template <class Work>
auto as_usage(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    throw UsageError(error_text(error));
  }
}

// Whether `path` can be written. Leaves an existing file unchanged and creates no new one. If it
// cannot be written, prints a sentence that names `option` to standard error.
bool check_writable(const std::string& option, const std::filesystem::path& path);

// Throws: CLI::RequiredError if the command line has no --run-dir, unless it asks for a dry run.
void require_run_dir(const CLI::App& command, bool dry_run);

// Validator for whole numbers from 1.
CLI::Validator at_least_one();

}  // namespace ringside::tools
